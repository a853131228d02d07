// From the accumulators of a warpgroup (wgmma.cuh) to rows of a 16-bit matrix.
#pragma once

#include "wick/backend/cuda/device/eights.cuh"
#include "wick/backend/cuda/device/hopper.cuh"

namespace wick {

struct TileOutput {
  void* data;
  int64_t ld;
  int rows, cols;     // cols is a multiple of 8
  const float* bias;  // [cols], or null; twice as many where there are gates and values
  const void* residual = nullptr;
  int64_t residual_ld = 0;
};

inline constexpr int kWarpOutBytes = 16 * 64 * 2;  // of shared memory that a warp needs to store

#ifdef WICK_SM90A

// Without a branch, around which the compiler would move the sums.
__device__ __forceinline__ void store_if(bool wanted, void* to, uint4 value) {
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %0, 0;\n"
      "@wanted st.global.v4.b32 [%1], {%2, %3, %4, %5};\n}" ::"r"(int(wanted)),
      "l"(to), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
      : "memory");
}

// kNothingToAdd if it is not wanted.
__device__ __forceinline__ uint4 load_if(bool wanted, const void* from) {
  uint4 value;
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %4, 0;\n"
      "mov.b32 %0, %6;\nmov.b32 %1, %6;\nmov.b32 %2, %6;\nmov.b32 %3, %6;\n"
      "@wanted ld.global.v4.b32 {%0, %1, %2, %3}, [%5];\n}"
      : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
      : "r"(int(wanted)), "l"(from), "n"(kNothingToAdd)
      : "memory");
  return value;
}

// To the accumulators of y's columns from `first_col` on; of a bias with several for a column the one that lies so far
// `behind`.
template <int kCols>
__device__ __forceinline__ void add_bias(float* sum, const TileOutput& y, int first_col, int behind = 0) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kCols / 4; ++i) {
    const int col = first_col + i / 2 * 8 + lane % 4 * 2 + i % 2;
    const float b = col < y.cols ? y.bias[col + behind] : 0;
    sum[i / 2 * 4 + i % 2] += b;
    sum[i / 2 * 4 + i % 2 + 2] += b;
  }
}

// The 64 rows of a warpgroup from `first_row` on. Each warp turns its 16 rows about in its own part of shared memory,
// 64 columns at a time, and stores whole lines.
template <class T, int kCols>
__device__ __forceinline__ void store_rows(float* sum, char* out, const TileOutput& y, int first_row, int first_col) {
  const int lane = threadIdx.x % 32, warp_row = first_row + threadIdx.x % 128 / 32 * 16;
  if (y.bias) add_bias<kCols>(sum, y, first_col);
  // Lanes take eights of columns, line after line.
  constexpr int kLast = kCols % 64 ? kCols % 64 : 64;
  const auto eights_from = [](int col) { return (col + 64 > kCols ? kLast : 64) / 8; };
  const auto for_lines = [&](int col, auto&& f) {
    const int eights = eights_from(col);
#pragma unroll
    for (int i = 0; i < eights / 2; ++i) {
      const int line = (i * 32 + lane) / eights, eight = (i * 32 + lane) % eights;
      const int y_row = warp_row + line, y_col = first_col + col + eight * 8;
      f(i, line, eight, y_row, y_col, y_row < y.rows && y_col < y.cols);
    }
  };
  uint4 added[4];  // the residual of 64 columns, asked for while those before are stored
  const auto load_residual = [&](int col) {
    if (col < kCols)
      for_lines(col, [&](int i, int, int, int y_row, int y_col, bool inside) {
        added[i] = load_if(inside && y.residual, static_cast<const T*>(y.residual) + y_row * y.residual_ld + y_col);
      });
  };
  load_residual(0);
#pragma unroll
  for (int col = 0; col < kCols; col += 64) {
    const int eights = eights_from(col), row = lane % 16;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < eights; j += 2) {
      const float* d = &sum[col / 2 + j * 4];
      store_matrices(out + row * 128 + ((j + lane / 16) ^ (row % 8)) * 16, pack<T>(d[0], d[1]), pack<T>(d[2], d[3]),
                     pack<T>(d[4], d[5]), pack<T>(d[6], d[7]));
    }
    __syncwarp();
    uint4 sums[4];
    for_lines(col, [&](int i, int line, int eight, int, int, bool) {
      const uint4 own = *reinterpret_cast<const uint4*>(out + line * 128 + (eight ^ (line % 8)) * 16);
      sums[i] = sum_of_eights<T>(own, added[i]);
    });
    load_residual(col + 64);
    for_lines(col, [&](int i, int, int, int y_row, int y_col, bool inside) {
      store_if(inside, static_cast<T*>(y.data) + y_row * y.ld + y_col, sums[i]);
    });
  }
}

#endif  // WICK_SM90A

}  // namespace wick
