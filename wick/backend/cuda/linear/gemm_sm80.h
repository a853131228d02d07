// The large product of the LoRA linear on mma.sync, from 8.0 on.
#pragma once

#include <string_view>

#include "wick/backend/cuda/linear/gemm_sm90.h"

namespace wick {

// How y is cut: the tile of a block.
enum class MmaTile { rows128_cols256, rows128_cols128, rows64_cols128, rows64_cols64, rows32_cols64 };
constexpr MmaTile kMmaTiles[] = {MmaTile::rows128_cols256, MmaTile::rows128_cols128, MmaTile::rows64_cols128,
                                 MmaTile::rows64_cols64, MmaTile::rows32_cols64};
std::string_view name_of(MmaTile tile);  // mma128x256

// The tile that is expected to be fastest, and what it takes.
struct MmaPlan {
  MmaTile tile;
  double microseconds;
};

// Whether the kernel is there and can read these: w and f laid out alike, rows 16-byte aligned. Where there are several
// groups, their columns and their ranks are multiples of 8.
bool mma_gemm_fits(const Gpu& gpu, const ExtendedGemm& g);
MmaPlan plan_mma_gemm(const Gpu& gpu, const ExtendedGemm& g);
void mma_gemm(CudaBackend& cuda, const ExtendedGemm& g, MmaTile tile);

}  // namespace wick
