// Dropout by a mask that is recomputed where it is needed: a thread takes the four elements of a Philox block.
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/numbers.cuh"
#include "wick/backend/cuda/device/philox.cuh"
#include "wick/backend/cuda/map/walk.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/matrix.h"
#include "wick/core/rng.h"

namespace wick {
namespace {

constexpr int kThreads = 256;
constexpr int kFour = 4;  // words of a block

// Element (i, j) lies at i * row + j * col.
template <class T>
struct Elements {
  T* data;
  int64_t row, col;

  explicit Elements(const DeviceMatrix& m)
      : data(static_cast<T*>(m.data)), row(m.transposed ? 1 : m.ld), col(m.transposed ? m.ld : 1) {}
};

// The extents, and in whole blocks how many lie in a row.
struct Extent {
  int64_t rows, cols;
  Divisor row_blocks;
};

struct Mask {
  uint64_t seed;
  const int64_t* draw;
  uint32_t threshold;
  float kept;

  __device__ __forceinline__ Words words(uint32_t block) const {
    return philox_words(seed, uint32_t(Stream::dropout), uint64_t(*draw) << 32 | block);
  }
  __device__ __forceinline__ float operator()(uint32_t word, float x) const {
    return word >= threshold ? x * kept : 0.0f;
  }
};

// Where a block never leaves its row, and is loaded as one.
template <class T>
__global__ void __launch_bounds__(kThreads)
    drop_fours(const Elements<T> y, const Elements<T> x, const Extent extent, const Mask mask, bool add) {
  using Four = Pack<T, kFour>;
  const uint32_t block = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t row = extent.row_blocks.divide(block);
  if (row >= extent.rows) return;
  const int64_t col = int64_t(block - row * extent.row_blocks.divisor) * kFour;
  const Four in = *reinterpret_cast<const Four*>(x.data + row * x.row + col);
  Four* const target = reinterpret_cast<Four*>(y.data + row * y.row + col);
  const Words words = mask.words(block);
  Four out;
  if (add) out = *target;
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    const float value = mask(words.word[i], to_float(in.value[i]));
    out.value[i] = from_float<T>(add ? to_float(out.value[i]) + value : value);
  }
  *target = out;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    drop_elements(const Elements<T> y, const Elements<T> x, const Extent extent, const Mask mask, bool add) {
  const uint32_t block = blockIdx.x * kThreads + threadIdx.x;
  const int64_t first = int64_t(block) * kFour, count = extent.rows * extent.cols;
  if (first >= count) return;
  const Words words = mask.words(block);
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    if (first + i >= count) return;
    const int64_t row = (first + i) / extent.cols, col = (first + i) % extent.cols;
    const float value = mask(words.word[i], to_float(x.data[row * x.row + col * x.col]));
    T& out = y.data[row * y.row + col * y.col];
    out = from_float<T>(add ? to_float(out) + value : value);
  }
}

bool in_fours(const DeviceMatrix& m) {
  return !m.transposed && m.ld % kFour == 0 && reinterpret_cast<uintptr_t>(m.data) % (kFour * size_of(m.dtype)) == 0;
}

// y = dropout(x), or y += dropout(x), of one dtype.
void drop(CudaBackend& cuda, const DeviceMatrix& y, const DeviceMatrix& x, const Dropout& dropout, bool add) {
  const int64_t blocks = ceil_div(x.rows * x.cols, kFour);
  check(blocks < int64_t{1} << 31, "CUDA: dropout of {} x {} elements", x.rows, x.cols);
  const Mask mask{dropout.seed, dropout.draw.as<const int64_t>(), dropout_threshold(dropout.p), 1 / (1 - dropout.p)};
  const bool fours = x.cols % kFour == 0 && in_fours(x) && in_fours(y);
  const Extent extent{x.rows, x.cols, Divisor(fours ? x.cols / kFour : 1)};
  const unsigned grid = blocks_for(uint32_t(blocks), kThreads);
  dispatch_float(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto kernel = fours ? drop_fours<T> : drop_elements<T>;
    kernel<<<grid, kThreads, 0, cuda.stream()>>>(Elements<T>(y), Elements<T>(x), extent, mask, add);
  });
  cuda_launched("dropout");
}

}  // namespace

void CudaBackend::dropout(View y, View x, const Dropout& dropout, bool add) {
  if (x.numel() == 0) return;
  const MatrixInput in(*this, x, x.dtype);
  const MatrixOutput out(*this, y, x.dtype);
  if (add) out.load();
  drop(*this, *out, *in, dropout, add);
  out.finish();
}

}  // namespace wick
