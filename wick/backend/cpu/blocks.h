// Rows of quantised blocks: decoded to f32, and their products with a few rows of activations as they lie.
#pragma once

#include "wick/backend/cpu/gemm.h"

namespace wick {

// y = x, n elements of whole blocks, to the bits of block_element() (core/blocks.h).
void decode_blocks(float* y, const void* x, DType dtype, int64_t n);

// With more rows of activations it pays to decode the weight for all of them at once.
inline constexpr int64_t kFewRowsOfBlocks = 8;
// y [M, N] = x [M, K] w[N, K]^T + bias for M <= kFewRowsOfBlocks, with x row-major and w of a block type. In f32: the
// weights' numbers are exact, and so are products with them but for f32's rounding.
void few_rows_times_blocks(const Matrix& y, const Matrix& x, const View& w, const float* bias);

}  // namespace wick
