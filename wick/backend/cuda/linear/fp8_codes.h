// Passes over codes of 8 bits (E4M3) and their scales, around the products of fp8.cpp. M rows, K inputs, N outputs.
#pragma once

#include "wick/backend/cuda/runtime/matrix.h"

namespace wick {

// Rows of codes with K contiguous; `stride` bytes from row to row, a multiple of 16, as the address is.
struct Fp8Codes {
  uint8_t* codes;
  int64_t rows, cols, stride;
  float* scales;  // [rows], side by side; none: ones

  DeviceMatrix matrix() const { return {codes, DType::fp8, rows, cols, stride}; }
};

// `to` gets the rows of x, rounded by fp8_scale() (core/row_formats.h), and `w_scales` [N] the scales of w's rows, w
// in fp8_product. x lies by rows. `narrow` gets a bias [N] of f32, if there is one, in x's dtype.
struct BiasCopy {
  const float* bias = nullptr;
  void* narrow = nullptr;
};
void encode_rows(CudaBackend& cuda, const Fp8Codes& to, const DeviceMatrix& x, const View& w, float* w_scales,
                 const BiasCopy& bias = {});
// The same of rows that are multiplied by `column_scales` [x.cols] first.
void encode_scaled_rows(CudaBackend& cuda, const Fp8Codes& to, const DeviceMatrix& x, const float* column_scales);
// `to` [K, N] gets the codes of w [N, K] and a one for each of its rows, w_scales [N] the scales of w's rows.
void transpose_codes(CudaBackend& cuda, const Fp8Codes& to, const View& w, float* w_scales);
// y, by rows, becomes y * (scale * rows[m]) * cols[n] + bias[n] + residual; bias and residual, of y's dtype, may be
// missing.
struct Fp8Scaling {
  float scale;
  const float *rows, *cols;
  const void* bias;
  DeviceMatrix residual;
};
void scale_product(CudaBackend& cuda, const DeviceMatrix& y, const Fp8Scaling& by);
// y, packed: the codes as numbers, which 16 bits hold exactly.
void decode_codes(CudaBackend& cuda, const DeviceMatrix& y, const Fp8Codes& x);

}  // namespace wick
