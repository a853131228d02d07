// The other factor of a matrix in fp8_product (core/row_formats.h): rounded to codes of 8 bits as a device with tensor
// cores for them rounds it, and decoded, so that a product in f32 is theirs but for the rounding of its sums.
#pragma once

#include "wick/backend/cpu/gemm.h"

namespace wick {

class Fp8Rows {
 public:
  // x [M, K] of x w^T: its rows.
  explicit Fp8Rows(const Matrix& x);
  // dy [M, N] of dy w for w [N, K]: the scales of w's rows lie along the reduction, so that they are in dy when it is
  // rounded, and out of it again after that, since the product decodes w with them.
  Fp8Rows(const Matrix& dy, const View& w);
  const Matrix& operator*() const { return rounded_; }

 private:
  void round(const Matrix& x, const float* column_scales);

  Scratch memory_;
  Matrix rounded_;
};

// The same rows as a weight to decode.
inline View decoded_rows(View w) {
  w.dtype = DType::fp8;
  return w;
}

}  // namespace wick
