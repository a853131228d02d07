// Rotary position embedding (Su et al., 2021).
#pragma once

#include <optional>

#include "wick/autograd/tape.h"

namespace wick {

// x [B, T, H, D]: each pair (a, b) of features becomes (a cos - b sin, a sin + b cos). cos and sin are f32, [T, D/2] or
// [B, T, D/2], and get no gradient. backend.h says which features make a pair. With `heads` only the first that many
// of H are turned. An x that is moved here and shares its storage with no other tensor is turned in place.
Tensor rope(Tensor x, const Tensor& cos, const Tensor& sin, RopePairs pairs, std::optional<int64_t> heads = {});

}  // namespace wick
