// Normalisation over groups of channels or rows; weights f32 [C].
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

// x [B, ..., C]: statistics over the inner positions and C/groups channels (Wu & He, 2018). `silu` fuses the
// activation.
Tensor group_norm(const Tensor& x, const Tensor& w, const Tensor& b, int groups, float eps, bool silu = false);
Tensor layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps);  // over the last axis
Tensor softmax(const Tensor& x);                                                  // over the last axis

}  // namespace wick
