// Rows of quantised blocks: decoded to f32, and multiplied as they lie.
#pragma once

#include "wick/backend/cpu/gemm.h"

namespace wick {

// y = x, n elements of whole blocks, to the bits of block_element() (core/blocks.h), or a whole row
// (core/row_formats.h).
void decode_blocks(float* y, const void* x, DType dtype, int64_t n);

// Two ways to y [M, N] = x [M, K] w[N, K]^T + bias that read the weight as it lies, once. Each is false, and does
// nothing, where it is not made for the sizes, the layouts or the processor.
//
// In f32, for M = 1 and weights of floats or blocks whose rows are whole 32s: nothing but f32's rounding. (For more
// rows it pays to decode the weight for all of them at once.)
bool linear_one_row(const Matrix& y, const Matrix& x, const View& w, const float* bias);
// For blocks and any M, with x rounded to 8 bits in blocks of 32: each is off by at most 1/254 of the largest in its
// block, and nothing else is beside f32's rounding. By AVX-512 VNNI or AVX2. The same bits on any number of threads.
bool linear_int8(const Matrix& y, const Matrix& x, const View& w, const float* bias);

}  // namespace wick
