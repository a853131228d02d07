// Gates: activations [..., 2D] -> [..., D], and those of diffusion transformers.
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

Tensor geglu(const Tensor& x);  // first half * gelu(second half), gelu with erf
Tensor swiglu(
    const Tensor& x);  // silu(first half) * second half: gate and up projection of a Llama, fused in this order

// x + gate * h with gate [B, D] beside all rows of h [B, ..., D]. Without a gradient of the gate h is not saved.
Tensor gated_add(const Tensor& x, const Tensor& gate, const Tensor& h);
void check_gated_add(const Tensor& x, const Tensor& gate, const Tensor& h);  // of shapes
// Records y, which is computed already, as that sum.
Tensor record_gated_add(const Tensor& y, const Tensor& x, const Tensor& gate, const Tensor& h);

// a [..., A] and gelu_tanh(b) [..., B] side by side: [..., A + B].
Tensor beside_gelu_tanh(const Tensor& a, const Tensor& b);

}  // namespace wick
