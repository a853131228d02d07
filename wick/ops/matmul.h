// Matrix products. Batch dimensions broadcast.
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

Tensor matmul(const Tensor& a, const Tensor& b);  // [..., M, K] x [..., K, N] -> [..., M, N]

// y [..., N] = x [..., K] w[N, K]^T + bias [N] + residual [..., N]. bias and residual may be empty. A frozen w gets no
// gradient, and then x is not saved. `ends_block`: a block under checkpoint() returns y and nothing in it reads y, so
// that it is not computed when the block runs again.
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias = {}, const Tensor& residual = {},
              bool ends_block = false);

// swiglu(linear(x, w, bias)), for inference.
Tensor gated_linear(const Tensor& x, const Tensor& w, const Tensor& bias);

}  // namespace wick
