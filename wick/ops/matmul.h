// Matrix products. Batch dimensions broadcast.
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

Tensor matmul(const Tensor& a, const Tensor& b);  // [..., M, K] x [..., K, N] -> [..., M, N]

// y [..., N] = x [..., K] w[N, K]^T + bias [N] + residual [..., N]. bias and residual may be empty. A frozen w gets no
// gradient, and then x is not saved. `ends_block`: y is what a block under checkpoint() returns and nothing else reads,
// so that it is not computed when the block runs again.
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias = {}, const Tensor& residual = {},
              bool ends_block = false);

// For inference: linear(rms_norm(x, norm, eps), w, bias), or of x itself where norm is empty; with `gated` swiglu of
// that.
Tensor fused_linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& norm, float eps, bool gated);

}  // namespace wick
