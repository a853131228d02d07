// Descriptions of matrices for the copy engine of 9.0.
#pragma once

#include <cuda.h>

#include "wick/backend/cuda/runtime/matrix.h"

namespace wick {

// The driver's, by name: the library that holds it is not linked.
decltype(&cuTensorMapEncodeTiled) tensor_map_encoder();

// Boxes of rows x cols of a 16-bit matrix as it lies in memory, for cols of 64, 32 or 16; a row of the box is swizzled.
// Zeros are read beyond the ends of the matrix.
CUtensorMap tensor_map(const DeviceMatrix& m, int rows, int cols);

// Whether the copy engine can read it.
inline bool tensor_map_fits(const DeviceMatrix& m) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return m.dtype != DType::f32 && m.ld % 8 == 0 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.rows < kMost &&
         m.cols < kMost;
}

}  // namespace wick
