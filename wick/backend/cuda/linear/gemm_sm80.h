// The extended product (extended_gemm.h) on mma.sync: from 8.0 on.
#pragma once

#include "wick/backend/cuda/linear/extended_gemm.h"

namespace wick {

// The tile that is expected to be fastest, and its time.
struct MmaPlan {
  MmaTile tile;
  double microseconds;
};

// Whether the kernel is there and can read these: w and f laid out alike, rows 16-byte aligned. Where there are several
// groups, their columns and their ranks are multiples of 8.
bool gemm_sm80_fits(const Gpu& gpu, const ExtendedGemm& g);
MmaPlan plan_gemm_sm80(const Gpu& gpu, const ExtendedGemm& g);
void gemm_sm80(CudaBackend& cuda, const ExtendedGemm& g, MmaTile tile);

}  // namespace wick
