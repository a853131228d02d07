// Scaled dot-product attention.
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

// q [B, T, H, D], k and v [B, S, H, D] -> [B, T, H, D]; scale is 1/sqrt(D) unless given. causal needs T = S.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal = false, float scale = 0);

}  // namespace wick
