#include "wick/ops/matmul.h"

#include "wick/backend/views.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

const Op kMatmul("matmul"), kLinear("linear");

Shape batch_of(const Shape& shape) { return Shape(shape.begin(), shape.end() - 2); }

Shape with_matrix(Shape batch, int64_t rows, int64_t columns) {
  batch.push_back(rows);
  batch.push_back(columns);
  return batch;
}

Tensor product(const Tensor& a, const Tensor& b) {
  const Shape batch = a.rank() >= b.rank() ? batch_of(a.shape()) : batch_of(b.shape());
  Tensor c = Tensor::empty(with_matrix(batch, a.dim(-2), b.dim(-1)), a.dtype(), a.memory());
  a.backend().matmul(c, expand(a.detached(), with_matrix(batch, a.dim(-2), a.dim(-1))),
                     expand(b.detached(), with_matrix(batch, b.dim(-2), b.dim(-1))), 1, 0);
  return c;
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  check(a.rank() >= 2 && b.rank() >= 2 && a.dim(-1) == b.dim(-2), "matmul: {} x {} do not fit", a.shape(), b.shape());
  const Tensor c = product(a, b);
  const Tensor saved_a = b.tracked() ? a.detached() : Tensor(), saved_b = a.tracked() ? b.detached() : Tensor();
  return record(kMatmul, c, {a, b}, [=, a = Input(a), b = Input(b)](const Tensor& dc, Grads& grads) {
    if (grads.wants(a)) grads.add(a, sum_to(product(dc, transpose(saved_b, -1, -2)), a.shape));
    if (grads.wants(b)) grads.add(b, sum_to(product(transpose(saved_a, -1, -2), dc), b.shape));
  });
}

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& residual, bool ends_block) {
  check(w.rank() == 2 && x.rank() >= 1 && x.dim(-1) == w.dim(1), "linear: weight {} does not fit input {}", w.shape(),
        x.shape());
  check(!bias || (bias.rank() == 1 && bias.dim(0) == w.dim(0)), "linear: bias does not fit weight {}", w.shape());
  const Shape shape = with_last(x.shape(), w.dim(0));
  check(!residual || residual.shape() == shape, "linear: residual {} does not fit output {}", residual.shape(), shape);
  const auto compute = [=](const Tensor& of) {
    Tensor y = Tensor::empty(shape, of.dtype(), of.memory());
    y.backend().linear(y, of, w, bias, residual);
    return y;
  };
  const Saved saved_x(x);
  const Tensor none = w.detached();  // a constant stands in for an absent tensor
  const Input b(bias ? bias : none), r(residual ? residual : none);
  const auto gradient = [=, x = Input(x), saved_x = w.tracked() ? saved_x : Saved()](const Tensor& dy, Grads& grads) {
    grads.add(r, dy);
    const Tensor dy2 = rows(dy);
    if (grads.wants(x)) {
      Tensor dx = x.empty();
      dx.backend().matmul(rows(dx), dy2, w, 1, 0);
      grads.add(x, dx);
    }
    if (grads.wants(w)) {
      Tensor dw = Tensor::empty(w.shape(), DType::f32, w.memory());
      dw.backend().matmul(dw, transpose(dy2, 0, 1), rows(saved_x()), 1, 0);
      grads.add(w, dw);
    }
    if (grads.wants(b)) grads.add(b, sum_to(dy2, b.shape));
  };
  if (ends_block && Tape::runs_again()) return record(kLinear, unread(shape, x), {x, w, b, r}, gradient);
  if (residual || (!w.tracked() && !saved_x.is_made_again()) || x.dim(-1) > kWidestMadeAgain)
    return record(kLinear, compute(x), {x, w, b, r}, gradient);
  return record(kLinear, compute(x), {x, w, b}, gradient, [=] { return compute(saved_x()); });
}

Tensor gated_linear(const Tensor& x, const Tensor& w, const Tensor& bias) {
  check(!Tape::active(), "gated_linear keeps nothing for gradients");
  check(w.rank() == 2 && x.rank() >= 1 && x.dim(-1) == w.dim(1), "gated_linear: weight {} does not fit input {}",
        w.shape(), x.shape());
  Tensor y = Tensor::empty(with_last(x.shape(), w.dim(0) / 2), x.dtype(), x.memory());
  y.backend().gated_linear(y, x, w, bias);
  return y;
}

}  // namespace wick
