// Quantised weights on the device: copied, decoded to floats, and made of floats.
#pragma once

#include "wick/backend/cuda/cuda.h"

namespace wick {

// y = x where either is quantised, as CudaBackend::copy(). Rows of such views are walked by one stride; other views are
// an Error.
void copy_quantized(CudaBackend& cuda, const View& y, const View& x);

// Where x, and where y, keeps rows (core/row_formats.h), and the other floats.
void decode_row_format(CudaBackend& cuda, const View& y, const View& x);
void encode_row_format(CudaBackend& cuda, const View& y, const View& x);

// Dense x to a k type, in rows of `cols` elements that lie `stride` of them apart.
void encode_k_blocks(CudaBackend& cuda, const View& y, int64_t cols, int64_t stride, const float* x);

}  // namespace wick
