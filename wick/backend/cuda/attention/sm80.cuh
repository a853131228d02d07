// Shared by the kernels of attention by mma.sync: tiles of tokens in shared memory, and products of a warp's rows with
// them.
#pragma once

#include "wick/backend/cuda/attention/fragments.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"

namespace wick {

inline constexpr int kWarps = 4, kThreads = 32 * kWarps;

template <int kD>
constexpr int kPitch = kD + 8;  // elements from row to row in shared memory: no bank conflicts

// kRows tokens of one head from `first`, zeros before token `begin`, beyond the last one and the last feature.
template <int kRows, int kD, class T>
__device__ __forceinline__ void load_tile(T* tile, const T* from, int64_t stride, int first, int tokens, int features,
                                          int begin = 0) {
#pragma unroll
  for (int i = int(threadIdx.x); i < kRows * kD / 8; i += kThreads) {
    const int row = i / (kD / 8), column = i % (kD / 8) * 8;
    const bool there = first + row >= begin && first + row < tokens && column < features;
    copy_async(tile + row * kPitch<kD> + column, there ? from + (first + row) * stride + column : from, there);
  }
}

// s [16, 8 kFragments] = a b^T with 16 rows a and 8 kFragments rows b of kD columns in shared memory.
template <int kD, class T, int kM, int kFragments>
__device__ __forceinline__ void multiply_rows(float (&s)[kM][kFragments][4], const T* a, const T* b, int lane) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int j = 0; j < kFragments; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][j][i] = 0;
#pragma unroll
  for (int k = 0; k < kD; k += 16) {
    uint32_t x[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) load_a(x[m], a + 16 * m * kPitch<kD> + k, kPitch<kD>, lane);
#pragma unroll
    for (int j = 0; j < kFragments; j += 2) {
      uint32_t y[4];
      load_b_transposed(y, b + 8 * j * kPitch<kD> + k, kPitch<kD>, lane);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma<T>(s[m][j], x[m], y[0], y[1]);
        mma<T>(s[m][j + 1], x[m], y[2], y[3]);
      }
    }
  }
}

// sum [16, kD] += weights b with 16 x 8 kFragments weights in registers.
template <int kD, class T, int kM, int kFragments>
__device__ __forceinline__ void add_product(float (&sum)[kM][kD / 8][4], const float (&weights)[kM][kFragments][4],
                                            const T* b, int lane) {
#pragma unroll
  for (int n = 0; n < kFragments; n += 2) {
    uint32_t x[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) pack<T>(x[m], weights[m][n], weights[m][n + 1]);
#pragma unroll
    for (int j = 0; j < kD / 8; j += 2) {
      uint32_t y[4];
      load_b(y, b + 8 * n * kPitch<kD> + 8 * j, kPitch<kD>, lane);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma<T>(sum[m][j], x[m], y[0], y[1]);
        mma<T>(sum[m][j + 1], x[m], y[2], y[3]);
      }
    }
  }
}

// nvcc 13 gives initial values only to the first row of a two-dimensional array of these.
struct SumsOfTile {
  RowSum of[2];
};

}  // namespace wick
