// Random tensors from a counter-based generator: a function of the generator's state alone. Not differentiable.
#pragma once

#include "wick/autograd/tape.h"
#include "wick/core/rng.h"

namespace wick {

// How far such a tensor takes the generator, in the blocks of Rng::reserve.
uint64_t random_blocks(const Shape& shape);
Tensor random_uniform(const Shape& shape, Rng& rng, Memory& memory = host_memory());  // [0, 1)
Tensor random_normal(const Shape& shape, Rng& rng, Memory& memory = host_memory());

}  // namespace wick
