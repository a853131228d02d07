#include "wick/backend/cpu/fp8.h"

#include <cmath>

#include "wick/backend/cpu/parallel.h"
#include "wick/core/row_formats.h"

namespace wick {
namespace {

// NaN if there is one.
float largest_of(const float* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i)
    if (const float magnitude = std::abs(x[i]); magnitude > largest || std::isnan(magnitude)) largest = magnitude;
  return largest;
}

void round_row(float* x, int64_t n) {
  const Fp8Scale s = fp8_scale(largest_of(x, n));
  for (int64_t i = 0; i < n; ++i) x[i] = s.scale * e4m3_to_f32(f32_to_e4m3(x[i] * s.inverse));
}

Scratch scales_of_rows(const View& w) {
  const int64_t at = row_layout(w.dtype, w.shape[1]).scales;
  Scratch scales(w.shape[0]);
  for (int64_t i = 0; i < w.shape[0]; ++i) {
    const char* const row = w.as<char>() + byte_offset(w, i * w.stride[0]);
    scales.data()[i] = *reinterpret_cast<const float*>(row + at);
  }
  return scales;
}

}  // namespace

Fp8Rows::Fp8Rows(const Matrix& x) { round(x, nullptr); }

Fp8Rows::Fp8Rows(const Matrix& dy, const View& w) { round(dy, scales_of_rows(w).data()); }

void Fp8Rows::round(const Matrix& x, const float* column_scales) {
  memory_ = Scratch(x.rows * x.cols);
  rounded_ = row_major(memory_.data(), x.rows, x.cols);
  parallel_each(x.rows, x.rows * x.cols, [&](int64_t i) {
    float* const row = rounded_.data + i * x.cols;
    for (int64_t j = 0; j < x.cols; ++j) row[j] = x.at(i, j) * (column_scales ? column_scales[j] : 1);
    round_row(row, x.cols);
    for (int64_t j = 0; column_scales && j < x.cols; ++j)
      row[j] = column_scales[j] == 0 ? 0 : row[j] / column_scales[j];
  });
}

}  // namespace wick
