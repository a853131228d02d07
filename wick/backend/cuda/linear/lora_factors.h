// The thin products of the LoRA linear: one side is the rank. Tensor cores through mma.sync, f32 sums, no atomics.
#pragma once

#include <span>

#include "wick/backend/cuda/runtime/matrix.h"

namespace wick {

// out [M, R] = scale * x [M, K] f [K, R], for f = down^T or f = up. f is f32 or has x's dtype. `out` may have more
// columns than f, which become zero.
struct Projection {
  DeviceMatrix out, x, f;
  float scale = 1;
  DeviceMatrix scaled;  // if wanted: out times scaled_by, rounded once
  float scaled_by = 1;
};

// out [C, R] = scale * x [M, C]^T s [M, R], in f32; out may be transposed. Rows of s are 16-byte aligned, and zero up
// to a multiple of 8.
struct FactorGradient {
  DeviceMatrix out, x, s;
  float scale = 1;
};

// Whether project() and factor_gradients() can work on these: 16-bit x whose rows are 16-byte aligned.
bool factors_fit(const Gpu& gpu, const DeviceMatrix& x);

// Layers that share their input go together, at most kMostLayers, with the same M and R and dtypes.
constexpr int kMostLayers = 4;
void project(CudaBackend& cuda, std::span<const Projection> projections);
// Which kernel precedes this one in the stream, for programmatic dependent launch: behind a `projection` s must be
// awaited; behind a `product` s is already complete, and only the end has to be awaited.
enum class Follows { other, projection, product };
void factor_gradients(CudaBackend& cuda, std::span<const FactorGradient> gradients, Follows follows);  // two a layer

}  // namespace wick
