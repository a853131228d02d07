#include "wick/ops/random.h"

namespace wick {
namespace {

const Op kRandomUniform("random_uniform", Op::Kind::not_differentiable);
const Op kRandomNormal("random_normal", Op::Kind::not_differentiable);

}  // namespace

uint64_t random_blocks(const Shape& shape) { return uint64_t(shape.numel() + 3) / 4; }

Tensor random_uniform(const Shape& shape, Rng& rng, Memory& memory) {
  Tensor y = Tensor::empty(shape, DType::f32, memory);
  y.backend().fill_uniform(y, rng.seed(), rng.stream(), rng.reserve(random_blocks(shape)));
  return y;
}

Tensor random_normal(const Shape& shape, Rng& rng, Memory& memory) {
  Tensor y = Tensor::empty(shape, DType::f32, memory);
  y.backend().fill_normal(y, rng.seed(), rng.stream(), rng.reserve(random_blocks(shape)));
  return y;
}

}  // namespace wick
