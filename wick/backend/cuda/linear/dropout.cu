// Dropout by a mask that is recomputed where it is needed: a thread takes the four elements of a Philox block.
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/numbers.cuh"
#include "wick/backend/cuda/device/philox.cuh"
#include "wick/backend/cuda/map/walk.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"
#include "wick/backend/cuda/runtime/matrix.h"
#include "wick/core/rng.h"

namespace wick {
namespace {

constexpr int kThreads = 256;
constexpr int kFour = 4;  // words of a block

struct Mask {
  uint64_t seed;
  const int64_t* draw;     // of each stretch
  Divisor stretch_blocks;  // in a stretch, the last of them perhaps in part
  uint32_t threshold;
  float kept;

  __device__ __forceinline__ uint32_t stretch(uint32_t block) const { return stretch_blocks.divide(block); }
  __device__ __forceinline__ uint32_t within(uint32_t block) const {
    return block - stretch(block) * stretch_blocks.divisor;
  }
  __device__ __forceinline__ Words words(uint32_t block) const {
    return philox_words(seed, uint32_t(Stream::dropout), uint64_t(draw[stretch(block)]) << 32 | within(block));
  }
  __device__ __forceinline__ float operator()(uint32_t word, float x) const {
    return word >= threshold ? x * kept : 0.0f;
  }
};

// Where a block never leaves its row, and is loaded as one; row_blocks of them lie in a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    drop_fours(const DeviceMatrix y, const DeviceMatrix x, const Divisor row_blocks, const Mask mask, bool add) {
  using Four = Pack<T, kFour>;
  const uint32_t block = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t row = row_blocks.divide(block);
  if (row >= x.rows) return;
  const int64_t col = int64_t(block - row * row_blocks.divisor) * kFour;
  const Four in = *reinterpret_cast<const Four*>(static_cast<const T*>(x.data) + row * x.ld + col);
  Four* const target = reinterpret_cast<Four*>(static_cast<T*>(y.data) + row * y.ld + col);
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
    drop_elements(const DeviceMatrix y, const DeviceMatrix x, int64_t stretch, const Mask mask, bool add) {
  const uint32_t block = blockIdx.x * kThreads + threadIdx.x;
  const int64_t begin = mask.stretch(block) * stretch, end = begin + stretch,
                first = begin + int64_t(mask.within(block)) * kFour;
  if (first >= x.rows * x.cols) return;
  const int64_t x_row = x.transposed ? 1 : x.ld, x_col = x.transposed ? x.ld : 1;
  const int64_t y_row = y.transposed ? 1 : y.ld, y_col = y.transposed ? y.ld : 1;
  const Words words = mask.words(block);
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    if (first + i >= end) return;
    const int64_t row = (first + i) / x.cols, col = (first + i) % x.cols;
    const float value = mask(words.word[i], to_float(static_cast<const T*>(x.data)[row * x_row + col * x_col]));
    T& out = static_cast<T*>(y.data)[row * y_row + col * y_col];
    out = from_float<T>(add ? to_float(out) + value : value);
  }
}

bool in_fours(const DeviceMatrix& m) {
  return !m.transposed && m.ld % kFour == 0 && reinterpret_cast<uintptr_t>(m.data) % (kFour * size_of(m.dtype)) == 0;
}

// y = dropout(x), or y += dropout(x), of one dtype.
void drop(CudaBackend& cuda, const DeviceMatrix& y, const DeviceMatrix& x, const Dropout& dropout, bool add) {
  const int64_t stretch = dropout.stretch(x.rows * x.cols), stretch_blocks = ceil_div(stretch, kFour),
                blocks = stretch_blocks * dropout.draw.numel();
  check(blocks < int64_t{1} << 31, "CUDA: dropout of {} x {} elements", x.rows, x.cols);
  const Mask mask{dropout.seed, dropout.draw.as<const int64_t>(), Divisor(stretch_blocks), dropout_threshold(dropout.p),
                  1 / (1 - dropout.p)};
  const bool fours = x.cols % kFour == 0 && stretch % kFour == 0 && in_fours(x) && in_fours(y);
  const Launch shape{dim3(blocks_for(uint32_t(blocks), kThreads)), dim3(kThreads)};
  dispatch_float(x.dtype, [&]<class T>(Type<T>) {
    if (fours)
      launch("dropout", cuda.stream(), shape, drop_fours<T>, y, x, Divisor(x.cols / kFour), mask, add);
    else
      launch("dropout", cuda.stream(), shape, drop_elements<T>, y, x, stretch, mask, add);
  });
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
