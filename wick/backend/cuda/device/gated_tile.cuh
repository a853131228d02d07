// SwiGLU between the accumulators of a warpgroup (wgmma.cuh) and rows of a 16-bit matrix.
#pragma once

#include "wick/backend/cuda/device/functions.cuh"
#include "wick/backend/cuda/device/tile_output.cuh"

namespace wick {

#ifdef WICK_SM90A

template <class T>
__device__ __forceinline__ float2 unpack(uint32_t both) {
  if constexpr (std::is_same_v<T, bf16>)
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000)};
  else
    return __half22float2(reinterpret_cast<const __half2&>(both));
}

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
  __device__ __forceinline__ void store(int part, char* out) const {
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
