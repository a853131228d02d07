// Gated activations, [..., 2D] -> [..., D].
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

Tensor geglu(const Tensor& x);  // first half * gelu(second half), gelu with erf
Tensor swiglu(
    const Tensor& x);  // silu(first half) * second half: gate and up projection of a Llama, fused in this order

}  // namespace wick
