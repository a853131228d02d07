// Epilogues of wgmma: from the accumulators of a warpgroup (wgmma.cuh) to rows of a 16-bit matrix, with bias and
// residual or through SwiGLU.
#pragma once

#include <climits>

#include "wick/backend/cuda/device/functions.cuh"
#include "wick/backend/cuda/device/wgmma.cuh"

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

// Four 8x8 matrices of 16-bit elements to shared memory; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void store_matrices(void* row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

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

// Adds the bias of columns [first_col, first_col + kCols) to the accumulators. `behind` skips to the values' half of a
// gate-and-value bias.
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

template <class T>
__device__ __forceinline__ float2 unpack(uint32_t both) {
  if constexpr (std::is_same_v<T, bf16>)
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000)};
  else
    return __half22float2(reinterpret_cast<const __half2&>(both));
}

// A tile's 64 rows of a warpgroup, rounded as they will be stored: with the residual, and part by part, so that other
// work can go on meanwhile.
template <class T, int kCols>
class PlainTile {
 public:
  static constexpr int kParts = kCols / 32;  // of 32 columns each

  // From sums of y's columns from `col` on.
  __device__ __forceinline__ void take(float* sum, const TileOutput& y, int row, int col) {
    if (y.bias) add_bias<kCols>(sum, y, col);
#pragma unroll
    for (int i = 0; i < kCols / 4; ++i) packed_[i] = pack<T>(sum[2 * i], sum[2 * i + 1]);
    const int lane = threadIdx.x % 32;
    row_ = row + threadIdx.x % 128 / 32 * 16 + lane / 4;
    col_ = col + lane % 4 * 8;
  }

  // Through shared memory of the warp, `out`, so that each lane stores 16 bytes of a row, and of that eight rows below.
  __device__ __forceinline__ void store(int part, char* out, const TileOutput& y) const {
    const int lane = threadIdx.x % 32, col = col_ + part * 32;
    const auto is_inside = [&](int i) { return row_ + i * 8 < y.rows && col < y.cols; };
    uint4 added[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      added[i] =
          load_if(y.residual && is_inside(i), static_cast<const T*>(y.residual) + (row_ + i * 8) * y.residual_ld + col);
    if (part == 0) __syncwarp();
    char* const half = out + part % 2 * 1024;  // the other one may still be read
    const auto place = [&](int row, int eight) { return half + row * 64 + (eight ^ row / 2 % 4) * 16; };
#pragma unroll
    for (int eight = 0; eight < 4; eight += 2) {
      const uint32_t* d = &packed_[part * 8 + eight * 2];
      store_matrices(place(lane % 16, eight + lane / 16), d[0], d[1], d[2], d[3]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 own = *reinterpret_cast<const uint4*>(place(i * 8 + lane / 4, lane % 4));
      store_if(is_inside(i), static_cast<T*>(y.data) + (row_ + i * 8) * y.ld + col, sum_of_eights<T>(own, added[i]));
    }
  }

 private:
  uint32_t packed_[kCols / 4] = {};
  int row_ = INT_MAX / 2, col_ = 0;  // this lane's first; no row before there is a tile
};

// A tile's 64 rows of a warpgroup, of whose columns the first half are gates and the second their values: both rounded
// as if they were stored. SwiGLU of them is stored part by part, so that other work can go on meanwhile.
template <class T, int kCols>
class GatedTile {
 public:
  static constexpr int kParts = kCols / 32;  // of 16 columns of y each

  // From sums that are gates of y's columns from `col` on, and their values.
  __device__ __forceinline__ void take(float* sum, const TileOutput& y, int row, int col) {
    const int lane = threadIdx.x % 32;
    if (y.bias) {
      add_bias<kCols / 2>(sum, y, col);
      add_bias<kCols / 2>(sum + kCols / 4, y, col, y.cols);
    }
#pragma unroll
    for (int i = 0; i < kCols / 4; ++i) packed_[i] = pack<T>(sum[2 * i], sum[2 * i + 1]);
    row += threadIdx.x % 128 / 32 * 16 + lane / 2;
    col += lane % 2 * 8;
    to_ = static_cast<T*>(y.data) + row * y.ld + col;
    cols_ = row < y.rows ? y.cols - col : 0;
  }

  // Through shared memory of the warp, `out`, so that each lane stores 16 bytes of a row.
  __device__ __forceinline__ void store(int part, char* out, const TileOutput&) const {
    const int lane = threadIdx.x % 32;
    uint32_t y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 gate = unpack<T>(packed_[part * 4 + i]), value = unpack<T>(packed_[kCols / 8 + part * 4 + i]);
      y[i] = pack<T>(value.x * (gate.x * fast_sigmoid(gate.x)), value.y * (gate.y * fast_sigmoid(gate.y)));
    }
    if (part == 0) __syncwarp();
    char* const half = out + part % 2 * 512;  // the other one may still be read
    const auto place = [&](int row, int eight) { return half + row * 32 + (eight ^ row / 4 % 2) * 16; };
    store_matrices(place(lane % 16, lane / 16), y[0], y[1], y[2], y[3]);
    __syncwarp();
    store_if(part * 16 < cols_, to_ + part * 16, *reinterpret_cast<const uint4*>(place(lane / 2, lane % 2)));
  }

 private:
  uint32_t packed_[kCols / 4] = {};
  T* to_ = nullptr;  // this lane's first columns of y
  int cols_ = 0;     // that are left from there on; none before there is a tile
};

#endif  // WICK_SM90A

}  // namespace wick
