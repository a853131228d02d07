// Quantised blocks on the device: copied, decoded to floats, and made of floats.
#pragma once

#include "wick/backend/cuda/cuda.h"

namespace wick {

// y = x where either has blocks, as CudaBackend::copy(). Blocks lie along rows of views whose outer dims one stride
// walks; others are an Error.
void copy_blocks(CudaBackend& cuda, const View& y, const View& x);

// Rows or columns [first, first + count) of a matrix of blocks; columns are whole blocks.
View block_rows(const View& w, int64_t first, int64_t count);
View block_columns(const View& w, int64_t first, int64_t count);

}  // namespace wick
