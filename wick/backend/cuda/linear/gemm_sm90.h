// The large product of the LoRA linear on 9.0, with the rank appended to its reduction.
#pragma once

#include <array>

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
    int64_t low_at = 0;  // its first column of low
    DeviceMatrix p{};    // [K, R of the group]; not given, low must be there before
  };
  DeviceMatrix y{}, x{}, w{}, low{};
  std::array<Group, kMostGroups> groups{};
  int group_count = 0;  // 0: the plain product
  const float* bias = nullptr;
  DeviceMatrix residual{};  // if there is one: like y, rows 16-byte aligned
  DeviceMatrix s{};         // if wanted, s_scale * x p; the product writes it where it makes low itself
  float s_scale = 1, low_scale = 1;
  bool gated = false;  // y [M, N/2] = swiglu of that; without groups, s and residual, for w the transpose of a weight
};

// How y is cut: rows by 64 for each of a block's consumers; `wide_tiles` tiles of `wide` columns, the rest in tiles of
// `narrow`.
struct GemmPlan {
  int consumers = 2;
  int wide = 256, wide_tiles = 0, narrow = 96;
  int panel = 8;  // pairs of row tiles that are worked on together, so that w stays in the L2
  int slice = 0;  // columns of low that each block makes for itself: 16, 32 or 64; 0: low was made before
  int parts = 1;  // blocks that share a reduction: 1, 2 or 4, more than one only with a slice
};

// Whether the kernel is there and the copy engine can read these: w, p and f laid out alike, rows 16-byte aligned.
bool extended_gemm_fits(const Gpu& gpu, const ExtendedGemm& g);
// The fastest by a count of cycles. WICK_CUDA_LORA_PLAN="slice parts consumers wide wide_tiles narrow", or "slice"
// alone, forces one where it can be, for tests and timings.
GemmPlan plan_gemm(const Gpu& gpu, const ExtendedGemm& g);
// A plan without a slice follows the launch that writes low; everything else was there before that one.
void extended_gemm(CudaBackend& cuda, const ExtendedGemm& g, const GemmPlan& plan);

}  // namespace wick
