// Tensor maps: descriptions of matrices for TMA, from 9.0 on.
#pragma once

#include <cuda.h>

#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/runtime/matrix.h"

namespace wick {

// Boxes of rows x cols of a 16-bit matrix as it lies in memory, for cols of 64, 32 or 16; a row of the box is swizzled.
// Zeros are read beyond the ends of the matrix.
CUtensorMap tensor_map(const DeviceMatrix& m, int rows, int cols);

inline constexpr int kHeadsBox = 64;  // tokens

// Boxes of kHeadsBox tokens and 64 features of one head of a 16-byte aligned 16-bit [B, T, H, D] view, at (feature,
// token, head, batch) and swizzled by 128 bytes; zeros are read beyond its ends.
CUtensorMap heads_map(const View& v);

// Whether TMA can read it.
inline bool tensor_map_fits(const DeviceMatrix& m) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return m.dtype != DType::f32 && m.ld % 8 == 0 && aligned(m.data) && m.rows < kMost && m.cols < kMost;
}

}  // namespace wick
