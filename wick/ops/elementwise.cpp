#include "wick/ops/elementwise.h"

#include <algorithm>

namespace wick {
namespace {

const Op kAdd("add"), kSub("sub"), kMul("mul"), kAffine("affine"), kClamp("clamp");
const Op kSilu("silu"), kGelu("gelu"), kGeluTanh("gelu_tanh"), kQuickGelu("quick_gelu"), kExp("exp"), kSquare("square"),
    kRsqrt("rsqrt");
const Op kSumTo("sum_to");

Shape broadcast(const char* op, const Shape& a, const Shape& b) {
  Shape shape = a.rank() >= b.rank() ? a : b;
  for (int i = 1; i <= std::min(a.rank(), b.rank()); ++i) {
    const int64_t da = a[a.rank() - i], db = b[b.rank() - i];
    check(da == db || da == 1 || db == 1, "{}: shapes {} and {} do not broadcast", op, a, b);
    shape[shape.rank() - i] = da == 1 ? db : da;
  }
  return shape;
}

// x's data seen with a larger shape: broadcast axes get stride 0.
View broadcast_view(const Tensor& x, const Shape& shape) {
  View v{x.view().data, x.dtype(), shape, shape};
  for (int i = 0; i < shape.rank(); ++i) {
    const int from = i - (shape.rank() - x.rank());
    v.stride[i] = from < 0 || x.shape()[from] != shape[i] ? 0 : x.stride()[from];
  }
  return v;
}

Tensor sum_down(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  Shape aligned = x.shape();  // `shape` with leading ones, of x's rank
  for (int i = 0; i < aligned.rank(); ++i) {
    const int from = i - (aligned.rank() - shape.rank());
    aligned[i] = from < 0 ? 1 : shape[from];
  }
  const Tensor y = Tensor::empty(aligned, x.dtype(), x.memory());
  x.backend().sum(y, x);
  return y.window(shape, contiguous_strides(shape));
}

Tensor forward(Binary kind, const Tensor& a, const Tensor& b, const Shape& shape) {
  Tensor y = Tensor::empty(shape, a.dtype(), a.memory());
  a.backend().binary(kind, y, broadcast_view(a, shape), broadcast_view(b, shape));
  return y;
}

Tensor scaled(const Tensor& x, float scale, float shift = 0) {
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.memory());
  x.backend().affine(y, x, scale, shift);
  return y;
}

Tensor unary(const Op& op, Unary kind, const Tensor& x) {
  const auto make = [=] {
    Tensor y = Tensor::empty(x.shape(), x.dtype(), x.memory());
    x.backend().unary(kind, y, x);
    return y;
  };
  const auto gradient = [=](const Tensor& dy, Grads& grads) {
    Tensor dx = Tensor::empty(x.shape(), x.dtype(), x.memory());
    x.backend().unary_backward(kind, dx, dy, x);
    grads.add(x, dx);
  };
  return record(op, make(), {x}, gradient, make);
}

Tensor signed_sum(const Op& op, Binary kind, const Tensor& a, const Tensor& b) {
  Tensor y = forward(kind, a, b, broadcast(op.name(), a.shape(), b.shape()));
  return record(op, y, {a, b}, [kind, a = Input(a), b = Input(b)](const Tensor& dy, Grads& grads) {
    if (grads.wants(a)) grads.add(a, sum_down(dy, a.shape));
    if (!grads.wants(b)) return;
    const Tensor db = sum_down(dy, b.shape);
    grads.add(b, kind == Binary::add ? db : scaled(db, -1));
  });
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return signed_sum(kAdd, Binary::add, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return signed_sum(kSub, Binary::sub, a, b); }

Tensor mul(const Tensor& a, const Tensor& b) {
  Tensor y = forward(Binary::mul, a, b, broadcast("mul", a.shape(), b.shape()));
  // Each factor is saved only for the other's gradient.
  const Tensor saved_a = b.tracked() ? a : Tensor(), saved_b = a.tracked() ? b : Tensor();
  return record(kMul, y, {a, b}, [=, a = Input(a), b = Input(b)](const Tensor& dy, Grads& grads) {
    if (grads.wants(a)) grads.add(a, sum_down(forward(Binary::mul, dy, saved_b, dy.shape()), a.shape));
    if (grads.wants(b)) grads.add(b, sum_down(forward(Binary::mul, dy, saved_a, dy.shape()), b.shape));
  });
}

Tensor affine(const Tensor& x, float scale, float shift) {
  return record(kAffine, scaled(x, scale, shift), {x},
                [x = Input(x), scale](const Tensor& dy, Grads& grads) { grads.add(x, scaled(dy, scale)); });
}

Tensor clamp(const Tensor& x, float min, float max) {
  check(min <= max, "clamp: the bounds {} and {} leave nothing", min, max);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.memory());
  x.backend().clamp(y, x, min, max);
  return record(kClamp, y, {x}, [=](const Tensor& dy, Grads& grads) {
    Tensor dx = Tensor::empty(x.shape(), x.dtype(), x.memory());
    x.backend().clamp_backward(dx, dy, x, min, max);
    grads.add(x, dx);
  });
}

Tensor silu(const Tensor& x) { return unary(kSilu, Unary::silu, x); }
Tensor gelu(const Tensor& x) { return unary(kGelu, Unary::gelu, x); }
Tensor gelu_tanh(const Tensor& x) { return unary(kGeluTanh, Unary::gelu_tanh, x); }
Tensor quick_gelu(const Tensor& x) { return unary(kQuickGelu, Unary::quick_gelu, x); }
Tensor exp(const Tensor& x) { return unary(kExp, Unary::exp, x); }
Tensor square(const Tensor& x) { return unary(kSquare, Unary::square, x); }
Tensor rsqrt(const Tensor& x) { return unary(kRsqrt, Unary::rsqrt, x); }

Tensor sum_to(const Tensor& x, const Shape& shape) {
  check(broadcast("sum_to", shape, x.shape()) == x.shape(), "sum_to: {} does not broadcast to {}", shape, x.shape());
  return record(kSumTo, sum_down(x, shape), {x}, [x = Input(x)](const Tensor& dy, Grads& grads) {
    Tensor dx = x.empty();
    dx.backend().copy(dx, broadcast_view(dy, x.shape));
    grads.add(x, dx);
  });
}

Tensor sum(const Tensor& x) { return sum_to(x, {1}); }
Tensor mean(const Tensor& x) {
  check(x.numel() > 0, "mean: the tensor {} is empty", x.shape());
  return affine(sum(x), 1.0f / float(x.numel()), 0);
}

}  // namespace wick
