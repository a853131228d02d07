// The thin products of the LoRA linear: one side is the rank. Tensor cores, f32 sums, no atomics.
#pragma once

#include <optional>
#include <span>
#include <type_traits>

#include "wick/backend/cuda/runtime/matrix.h"

namespace wick {

// Kernels have tiles of 16, 32 or 64 ranks.
inline constexpr int kWidestRankTile = 64;

// Calls f with the smallest tile that holds the rank, as a constant, or with the widest.
template <class F>
void with_rank_tile(int64_t rank, const F& f) {
  if (rank <= 16) return f(std::integral_constant<int, 16>());
  if (rank <= 32) return f(std::integral_constant<int, 32>());
  f(std::integral_constant<int, kWidestRankTile>());
}

// ---- one product a launch, through mma.sync (lora_factors.cu)

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

// ---- few rows, where a launch costs more than its work: all of it is one launch, on 9.0 (lora_few_rows.cu)

// y [M, N] += s up^T with s [M, R] = scale * x [M, K] down^T. s is rounded to x's dtype, as everywhere.
struct AdapterProduct {
  DeviceMatrix y, x, down, up;
  DeviceMatrix saved;  // x down^T, if wanted
  float scale = 1;
};

// dup [N, R] = scale * dy^T s and ddown [R, K] = ds^T x, in f32, with s = x down^T and ds = scale * dy up. Either may
// be unwanted; both may be transposed.
struct AdapterGradients {
  DeviceMatrix ddown, dup, dy, x, down, up;
  float scale = 1;
};

// Activations as factors_fit() wants them, factors of one dtype, f32 or theirs, with 16-byte aligned rows.
bool few_rows_fit(const Gpu& gpu, const AdapterProduct& p, int64_t rank);  // without the factors
bool few_rows_fit(const Gpu& gpu, int64_t rows, int64_t rank);             // for the gradients
void few_rows_product(CudaBackend& cuda, const AdapterProduct& p);
// False, and nothing done, where the device has no room for all blocks at once, which wait for each other.
bool few_rows_gradients(CudaBackend& cuda, const AdapterGradients& g);

// ---- many rows, on 9.0: each large operand goes by once, and both of its products with the rank's sides are made
// while it does (lora_pass_sm90.cu)

// out [rows, columns] of sums of `count` parts each, where a part is `quads` float4s for each thread of a warpgroup.
struct SumTask {
  const float4* parts;
  DeviceMatrix out;
  int64_t rows;
  int count, quads;
  float scale;
};
struct SumTasks {
  static constexpr int kMost = kMostLayers + 1;  // a dup of each layer, and ddown
  SumTask of[kMost];
};

// Gradients whose shares of the rows are still to be added up.
class PartialGradients {
 public:
  explicit PartialGradients(CudaBackend& cuda) : cuda_(cuda) {}

  // Memory for a gradient's parts: shares x 64-column chunks x ranks.
  float4* add(const FactorGradient& g, int shares, int ranks);
  // Adds them up; the launch before must be one of stream()'s.
  void finish();

 private:
  CudaBackend& cuda_;
  std::optional<Scratch> memory_[SumTasks::kMost];
  SumTasks tasks_{};
  int count_ = 0;
};

// Whether stream() can take this x with factors of this rank.
bool stream_fits(const Gpu& gpu, const DeviceMatrix& x, int64_t rank);

// One pass over g.x, which is p.x as well, with p.f = up and no p.scaled; p may be null. p's result is there when the
// launch ends, g's after gradients.finish(). `follows`: which launch before this one computes g.s.
void stream(CudaBackend& cuda, const Projection* p, const FactorGradient& g, PartialGradients& gradients,
            Follows follows);

}  // namespace wick
