// TMA descriptors of attention's heads (9.0).
#pragma once

#include <cuda.h>

#include "wick/core/tensor.h"

namespace wick {

inline constexpr int kHeadsBox = 64;  // tokens

// Boxes of kHeadsBox tokens and 64 features of one head of a 16-byte aligned 16-bit [B, T, H, D] view, at (feature,
// token, head, batch) and swizzled by 128 bytes; zeros are read beyond its ends.
CUtensorMap heads_map(const View& v);

}  // namespace wick
