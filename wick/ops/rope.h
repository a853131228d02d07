// Rotary position embedding (Su et al., 2021).
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

// x [B, T, H, D]: each pair (a, b) of features becomes (a cos - b sin, a sin + b cos). cos and sin are f32, [T, D/2] or
// [B, T, D/2], and get no gradient. backend.h says which features make a pair.
Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, RopePairs pairs);

}  // namespace wick
