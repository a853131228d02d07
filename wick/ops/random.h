// Random tensors from a counter-based generator: a function of the generator's state alone. Not differentiable.
#pragma once

#include "wick/autograd/tape.h"
#include "wick/core/rng.h"

namespace wick {

Tensor random_uniform(const Shape& shape, Rng& rng, Memory& memory = host_memory());  // [0, 1)
Tensor random_normal(const Shape& shape, Rng& rng, Memory& memory = host_memory());

}  // namespace wick
