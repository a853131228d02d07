// The extended product (extended_gemm.h) on wgmma, with the rank appended to its reduction: 9.0.
#pragma once

#include "wick/backend/cuda/linear/extended_gemm.h"

namespace wick {

// Whether the kernel is there and TMA can read these: w, p and f laid out alike, rows 16-byte aligned.
bool gemm_sm90_fits(const Gpu& gpu, const ExtendedGemm& g);
// The fastest by a count of cycles. WICK_CUDA_WAY=sm90:SLICE/PARTS/CONSUMERS/WIDE/WIDE_TILES/NARROW, or sm90:SLICE,
// forces one where it can be.
GemmPlan plan_gemm_sm90(const Gpu& gpu, const ExtendedGemm& g);
// A plan without a slice follows the launch that writes low; everything else was there before that one.
void gemm_sm90(CudaBackend& cuda, const ExtendedGemm& g, const GemmPlan& plan);

}  // namespace wick
