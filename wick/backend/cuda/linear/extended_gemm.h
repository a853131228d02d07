// The extended product: a linear's, and in the same sum one of low rank (a LoRA's forward pass, or its dx), or SwiGLU
// behind it; by whichever way is the fastest for its shape on this device.
#pragma once

#include <string>
#include <string_view>

#include "wick/backend/cuda/runtime/matrix.h"

namespace wick {

// y [M, N] = x [M, K] w [K, N] + low [M, R] f [R, N] + bias, in one f32 sum, which is rounded, + residual: forward with
// w, f the transposes of the weight and of up; for dx with the weight and down as they are. All but the bias have one
// 16-bit dtype.
// low = low_scale * x p comes from the launch before, or the product makes it itself (GemmPlan::slice).
// Groups: layers that share x have their weights one below the other, and each its own columns of y and of low.
struct ExtendedGemm {
  static constexpr int kMostGroups = 4;
  struct Group {
    DeviceMatrix f;      // [R of the group, N of the group]
    int64_t column = 0;  // its first one of y,
    int64_t low_at = 0;  // and of low
    DeviceMatrix p{};    // [K, R of the group]; not given, low must be there before
  };
  DeviceMatrix y{}, x{}, w{}, low{};
  Group groups[kMostGroups]{};
  int group_count = 0;  // 0: the plain product
  const float* bias = nullptr;
  DeviceMatrix residual{};  // if there is one: like y, rows 16-byte aligned
  DeviceMatrix s{};         // if wanted, s_scale * x p; the product writes it where it makes low itself
  float s_scale = 1, low_scale = 1;
  bool gated = false;  // y [M, N/2] = swiglu of that; without groups, s and residual, for w the transpose of a weight
};

// How y is cut on 9.0: rows by 64 for each of a block's consumers; `wide_tiles` tiles of `wide` columns, the rest in
// tiles of `narrow`.
struct GemmPlan {
  int consumers = 2;
  int wide = 256, wide_tiles = 0, narrow = 96;
  int panel = 8;  // pairs of row tiles that are worked on together, so that w stays in the L2
  int slice = 0;  // columns of low that each block makes for itself: 16, 32 or 64; 0: low was made before
  int parts = 1;  // blocks that share a reduction: 1, 2 or 4, more than one only with a slice
};

// How y is cut on 8.x: the tile of a block.
enum class MmaTile { rows128_cols256, rows128_cols128, rows64_cols128, rows64_cols64, rows32_cols64 };
inline constexpr std::string_view kMmaTileNames[] = {"128x256", "128x128", "64x128", "64x64", "32x64"};

enum class ProductWay {
  wgmma,     // gemm_sm90.cu
  mma,       // gemm_sm80.cu
  composed,  // cuBLASLt's product, and another for each group that adds to it
};

struct ProductPlan {
  ProductWay way;
  GemmPlan gemm;  // for wgmma
  MmaTile tile;   // for mma
  bool makes_low() const { return way == ProductWay::wgmma && gemm.slice > 0; }
};
std::string to_string(const ProductPlan& plan);  // "wgmma 5 x 256, 96", "mma 128x256", "composed"

// Whether a kernel of ours can take it; then so can all ways that its device has. Groups need not be there yet.
bool extended_gemm_fits(const Gpu& gpu, const ExtendedGemm& g);
// By shape and device alone, so that every run of a training goes the same way to the same bits. g.low need not be
// there. WICK_CUDA_WAY=lora:wgmma, mma or composed prefers that way, sm80:128x256 and its like one tile of mma's.
ProductPlan plan_extended_gemm(const Gpu& gpu, const ExtendedGemm& g);
// Unless the plan makes low, it is written by the launch before this one; everything else was there before that.
void extended_gemm(CudaBackend& cuda, const ExtendedGemm& g, const ProductPlan& plan);

// ---- its ways

// On wgmma, with the rank appended to the reduction: 9.0. Whether the kernel is there and TMA can read these: w, p and
// f laid out alike, rows 16-byte aligned.
bool gemm_sm90_fits(const Gpu& gpu, const ExtendedGemm& g);
// The fastest by a count of cycles. WICK_CUDA_WAY=sm90:SLICE/PARTS/CONSUMERS/WIDE/WIDE_TILES/NARROW, or sm90:SLICE,
// forces one where it can be.
GemmPlan plan_gemm_sm90(const Gpu& gpu, const ExtendedGemm& g);
void gemm_sm90(CudaBackend& cuda, const ExtendedGemm& g, const GemmPlan& plan);

// On mma.sync: from 8.0 on. Whether the kernel is there and can read these: w and f laid out alike, rows 16-byte
// aligned. Where there are several groups, their columns and their ranks are multiples of 8.
bool gemm_sm80_fits(const Gpu& gpu, const ExtendedGemm& g);
struct MmaPlan {  // the tile that is expected to be fastest, and its time
  MmaTile tile;
  double microseconds;
};
MmaPlan plan_gemm_sm80(const Gpu& gpu, const ExtendedGemm& g);
void gemm_sm80(CudaBackend& cuda, const ExtendedGemm& g, MmaTile tile);

}  // namespace wick
