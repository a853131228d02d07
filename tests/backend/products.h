// Products of matrices in double precision for the references, vectorised: devices are tested at the sizes of models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace wick::probe {

using Doubles = std::vector<double>;

// A matrix in an array of doubles, in any layout.
struct Matrix {
  const double* data;
  int64_t rows, columns, row_stride, column_stride;

  Matrix transposed() const { return {data, columns, rows, column_stride, row_stride}; }
};

inline Matrix by_rows(const Doubles& a, int64_t rows, int64_t columns) { return {a.data(), rows, columns, columns, 1}; }

// c [a.rows, b.columns] += scale * a b, where c's rows lie `stride` apart
void add_product(double* c, int64_t stride, const Matrix& a, const Matrix& b, double scale = 1);

// scale * a b
inline Doubles times(const Matrix& a, const Matrix& b, double scale = 1) {
  Doubles c(size_t(a.rows * b.columns));
  add_product(c.data(), b.columns, a, b, scale);
  return c;
}

}  // namespace wick::probe
