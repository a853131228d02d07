// Linear layers of a few tokens: the step of a language model that makes one token after the other. All that counts
// there is reading the weight once, at the speed of memory (docs/kernels/decode.md).
#pragma once

#include "wick/backend/cuda/runtime/matrix.h"

namespace wick {

inline constexpr int kMostFewRowsBlocks = 4;  // of a LoRA

// y [M, N] = x [M, K] w[N, K]^T + bias + residual, and the LoRA's scale * s up^T where there is one, in the same sum;
// y [M, N/2] is swiglu of that if `gated`.
struct LinearCall {
  DeviceMatrix y, x;
  View w, bias = {};
  DeviceMatrix residual = {};
  bool gated = false;
  const LoraFactors* lora = nullptr;  // factors of x's dtype
  DeviceMatrix s = {};  // with a LoRA: room for x down^T [M, R], rows of a multiple of 4 elements, 8-byte aligned
};

// Whether the kernels are there and made for these sizes and layouts; s need not be there yet.
bool few_rows_fit(const Gpu& gpu, const LinearCall& l);
void few_rows_linear(CudaBackend& cuda, const LinearCall& l);  // one launch for each 8 rows; one more for a LoRA's s
// The same from a LoRA linear's views, y [..., N/2] if `gated` (lora.cpp). False, and nothing done, where these kernels
// do not take it.
bool lora_few_rows(CudaBackend& cuda, const LoraArgs& a, bool gated = false);

// s [M, R] = x [M, K] down [R, K]^T, all of one 16-bit dtype: x and down with 16-byte aligned rows.
void few_rows_down(CudaBackend& cuda, const DeviceMatrix& s, const DeviceMatrix& x, const View& down);

}  // namespace wick
