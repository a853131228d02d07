#include "wick/ops/rope.h"

namespace wick {
namespace {

const Op kRope("rope");

// The first heads of [B, T, H, D], or those after them.
Tensor first_heads(const Tensor& x, int64_t count) {
  return x.window({x.dim(0), x.dim(1), count, x.dim(3)}, x.stride());
}
Tensor other_heads(const Tensor& x, int64_t first) {
  return x.window({x.dim(0), x.dim(1), x.dim(2) - first, x.dim(3)}, x.stride(), first * x.stride()[2]);
}

bool may_overwrite(const Tensor& x) { return x.is_sole() && x.contiguous(); }

}  // namespace

Tensor rope(Tensor x, const Tensor& cos, const Tensor& sin, RopePairs pairs, std::optional<int64_t> some) {
  check(x.rank() == 4 && x.dim(3) % 2 == 0, "rope: expected [B, T, H, D] with an even D, got {}", x.shape());
  const int64_t half = x.dim(3) / 2, heads = some.value_or(x.dim(2));
  check(0 <= heads && heads <= x.dim(2), "rope: {} has no {} heads", x.shape(), heads);
  for (const Tensor& table : {cos, sin})
    check(table.dtype() == DType::f32 &&
              (table.shape() == Shape{x.dim(1), half} || table.shape() == Shape{x.dim(0), x.dim(1), half}),
          "rope: a table {} of {} does not fit input {}", table.shape(), name_of(table.dtype()), x.shape());
  check(cos.shape() == sin.shape(), "rope: cosines {} and sines {} differ in shape", cos.shape(), sin.shape());
  check(!cos.tracked() && !sin.tracked(), "rope: the tables get no gradient");
  const auto turn = [=](const Tensor& to, const Tensor& from, bool inverse) {
    to.backend().rope(first_heads(to, heads), first_heads(from, heads), cos, sin, pairs, inverse);
    if (to.view().data != from.view().data && heads < from.dim(2))
      to.backend().copy(other_heads(to, heads), other_heads(from, heads));
  };
  const Tensor y = may_overwrite(x) ? x : Input(x).empty();
  turn(y, x, false);
  return record(kRope, y, {x}, [turn, x = Input(x)](const Tensor& dy, Grads& grads) {
    const Tensor dx = may_overwrite(dy) ? dy : x.room();
    turn(dx, dy, true);
    grads.add(x, dx);
  });
}

}  // namespace wick
