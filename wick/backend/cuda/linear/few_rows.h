// Linear layers of a few tokens: the step of a language model that makes one token after the other. All that counts
// there is reading the weight once, at the speed of memory (docs/kernels/decode.md).
#pragma once

#include "wick/backend/cuda/runtime/matrix.h"

namespace wick {

// y [M, N] = x [M, K] w[N, K]^T + bias + residual, for weights in x's 16-bit dtype or in blocks; y [M, N/2] is swiglu
// of that if `gated`. False, and nothing done, where it is not made for the sizes, the layouts or the device, or where
// cuBLASLt is faster.
bool linear_few_rows(CudaBackend& cuda, const DeviceMatrix& y, const DeviceMatrix& x, const View& w, const View& bias,
                     const DeviceMatrix& residual, bool gated = false);

}  // namespace wick
