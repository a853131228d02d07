// A convolution as a matrix product: every pixel becomes a row of its kernel window's elements (im2col).
#pragma once

#include "wick/backend/cuda/cuda.h"

namespace wick {

struct Columns {
  // Row r stands for pixel (b, i, j) of [B, out_height, out_width], counted in row-major order; its columns are
  // [KH, KW, C] in row-major order: element (p, q, c) is image(b, f(i, p, above), f(j, q, left), c), or zero where that
  // lies outside, with f(i, p, before) = (multiplier * i + direction * p + before) / divisor if that is whole.
  int64_t height, width, channels;  // of the image
  int64_t out_height, out_width, kh, kw;
  int64_t multiplier, direction, above, left, divisor;

  int64_t row_length() const { return kh * kw * channels; }
};

// Rows first .. first + rows - 1 of the columns of a contiguous image [B, H, W, C], into contiguous memory of its
// dtype.
void gather_columns(CudaBackend& cuda, void* rows_out, const View& image, const Columns& columns, int64_t first,
                    int64_t rows);

}  // namespace wick
