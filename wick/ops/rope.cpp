#include "wick/ops/rope.h"

namespace wick {
namespace {

const Op kRope("rope");

}  // namespace

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, RopePairs pairs) {
  check(x.rank() == 4 && x.dim(3) % 2 == 0, "rope: expected [B, T, H, D] with an even D, got {}", x.shape());
  const int64_t half = x.dim(3) / 2;
  for (const Tensor& table : {cos, sin})
    check(table.dtype() == DType::f32 &&
              (table.shape() == Shape{x.dim(1), half} || table.shape() == Shape{x.dim(0), x.dim(1), half}),
          "rope: a table {} of {} does not fit input {}", table.shape(), name_of(table.dtype()), x.shape());
  check(cos.shape() == sin.shape(), "rope: cosines {} and sines {} differ in shape", cos.shape(), sin.shape());
  check(!cos.tracked() && !sin.tracked(), "rope: the tables get no gradient");
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.memory());
  x.backend().rope(y, x, cos, sin, pairs, false);
  return record(kRope, y, {x}, [=, x = Input(x)](const Tensor& dy, Grads& grads) {
    Tensor dx = x.empty();
    dx.backend().rope(dx, dy, cos, sin, pairs, true);
    grads.add(x, dx);
  });
}

}  // namespace wick
