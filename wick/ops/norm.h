// Normalisation over groups of channels or rows; weights f32 [C].
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

// x [B, ..., C]: statistics over the inner positions and C/groups channels (Wu & He, 2018). `silu` fuses the
// activation.
Tensor group_norm(const Tensor& x, const Tensor& w, const Tensor& b, int groups, float eps, bool silu = false);

// y * (1 + scale) + shift after a norm, [B, C] each: the AdaLN of diffusion transformers. Either may be empty.
struct Modulated {
  Tensor scale, shift;
};

// Over the last axis of x [B, ..., C]; w and b may be empty.
Tensor layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps, const Modulated& m = {});
Tensor rms_norm(const Tensor& x, const Tensor& w, float eps, const Modulated& m = {});

// x + gate * h (gated_add), and its layer norm without weights, modulated.
struct NormedSum {
  Tensor sum, norm;
};
NormedSum gated_add_norm(const Tensor& x, const Tensor& gate, const Tensor& h, float eps, const Modulated& m);

Tensor softmax(const Tensor& x);

}  // namespace wick
