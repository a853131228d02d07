// The large product of the LoRA linear on 9.0, with the rank appended to its reduction.
#pragma once

#include "wick/backend/cuda/matrix.h"

namespace wick {

// y [M, N] = x [M, K] w [K, N] + low [M, R] f [R, N] + bias, in one f32 sum: forward with w, f the transposes of the
// weight and of up; for dx with the weight and down as they are. All but the bias have one 16-bit dtype.
struct ExtendedGemm {
  DeviceMatrix y, x, w, low, f;
  const float* bias = nullptr;
};

// Whether the kernel is there and the copy engine can read these: w and f laid out alike, rows 16-byte aligned.
bool extended_gemm_fits(const CudaBackend& cuda, const ExtendedGemm& g);
// `follows`: low is written by the launch before this one, and everything else was there before that.
void extended_gemm(CudaBackend& cuda, const ExtendedGemm& g, bool follows);

}  // namespace wick
