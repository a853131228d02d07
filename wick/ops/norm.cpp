#include "wick/ops/norm.h"

namespace wick {
namespace {

const Op kGroupNorm("group_norm"), kLayerNorm("layer_norm"), kSoftmax("softmax");

void check_vectors(const char* op, const Tensor& x, const Tensor& w, const Tensor& b) {
  check(x.rank() >= 2 && w.rank() == 1 && b.rank() == 1 && w.dim(0) == x.dim(-1) && b.dim(0) == x.dim(-1),
        "{}: weight {} and bias {} do not fit input {}", op, w.shape(), b.shape(), x.shape());
}

Tensor gradient_of(const Tensor& x) { return x.tracked() ? Input(x).empty() : Tensor(); }

}  // namespace

Tensor group_norm(const Tensor& x, const Tensor& w, const Tensor& b, int groups, float eps, bool silu) {
  check_vectors("group_norm", x, w, b);
  check(groups > 0 && x.dim(-1) % groups == 0, "group_norm: {} channels do not split into {} groups", x.dim(-1),
        groups);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.memory());
  Tensor mean = Tensor::empty({x.dim(0), groups}, DType::f32, x.memory());
  Tensor rstd = Tensor::empty({x.dim(0), groups}, DType::f32, x.memory());
  x.backend().group_norm(y, mean, rstd, x, w, b, groups, eps, silu);
  return record(kGroupNorm, y, {x, w, b}, [=](const Tensor& dy, Grads& grads) {
    const Tensor dx = gradient_of(x), dw = gradient_of(w), db = gradient_of(b);
    dy.backend().group_norm_backward(dx, dw, db, dy, x, w, b, mean, rstd, groups, silu);
    grads.add(x, dx);
    grads.add(w, dw);
    grads.add(b, db);
  });
}

Tensor layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps) {
  check_vectors("layer_norm", x, w, b);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.memory());
  const Shape rows(x.shape().begin(), x.shape().end() - 1);
  Tensor mean = Tensor::empty(rows, DType::f32, x.memory()), rstd = Tensor::empty(rows, DType::f32, x.memory());
  x.backend().layer_norm(y, mean, rstd, x, w, b, eps);
  return record(kLayerNorm, y, {x, w, b}, [=](const Tensor& dy, Grads& grads) {
    const Tensor dx = gradient_of(x), dw = gradient_of(w), db = gradient_of(b);
    dy.backend().layer_norm_backward(dx, dw, db, dy, x, w, mean, rstd);
    grads.add(x, dx);
    grads.add(w, dw);
    grads.add(b, db);
  });
}

Tensor softmax(const Tensor& x) {
  check(x.rank() >= 1 && x.dim(-1) > 0, "softmax: the last axis of {} is empty", x.shape());
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.memory());
  x.backend().softmax(y, x);
  return record(kSoftmax, y, {x}, [x = Input(x), y](const Tensor& dy, Grads& grads) {
    Tensor dx = x.empty();
    dx.backend().softmax_backward(dx, dy, y);
    grads.add(x, dx);
  });
}

}  // namespace wick
