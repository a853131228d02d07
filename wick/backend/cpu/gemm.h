// f32 matrix products on BLAS-shaped matrices, and the ways from strided views of any float dtype to them.
#pragma once

#include <algorithm>
#include <optional>

#include "wick/backend/cpu/scratch.h"
#include "wick/backend/views.h"

namespace wick {

// rows x cols with one of its strides 1: element (i, j) lies at i * ld + j, or at j * ld + i if transposed.
struct Matrix {
  float* data = nullptr;
  int64_t rows = 0, cols = 0;
  int64_t ld = 1;
  bool transposed = false;

  float& at(int64_t i, int64_t j) const { return data[transposed ? j * ld + i : i * ld + j]; }
  Matrix t() const { return {data, cols, rows, ld, !transposed}; }
  Matrix row_range(int64_t begin, int64_t end) const {
    return {data + begin * (transposed ? 1 : ld), end - begin, cols, ld, transposed};
  }
  Matrix col_range(int64_t begin, int64_t end) const { return t().row_range(begin, end).t(); }
};

inline Matrix row_major(float* data, int64_t rows, int64_t cols) { return {data, rows, cols, cols, false}; }

// c = alpha * a b + beta * c, by oneDNN's sgemm, which needs no set-up for a shape. The first is shared among threads,
// in tiles
// (`products.h`); the second is one product on this thread. Their bits may differ.
void gemm(const Matrix& c, const Matrix& a, const Matrix& b, float alpha = 1, float beta = 0);
void gemm_here(const Matrix& c, const Matrix& a, const Matrix& b, float alpha = 1, float beta = 0);

// The last two dims of v as a matrix, if it is f32 and the strides allow it.
std::optional<Matrix> as_matrix(const View& v);
inline View contiguous_view(float* data, const Shape& shape) { return contiguous_view(data, DType::f32, shape); }

// [..., D] as a matrix [rows, D]: the view itself, or else f32 memory in its place.
class RowMatrix {
 public:
  const Matrix& operator*() const { return matrix_; }
  const Matrix* operator->() const { return &matrix_; }

 protected:
  explicit RowMatrix(const View& v);

  View view_;
  Scratch copy_;
  Matrix matrix_;
};

// To read.
class Operand : public RowMatrix {
 public:
  explicit Operand(const View& v);
};

// To write. store() finishes: it copies to the view where that could not be written as is.
class Result : public RowMatrix {
 public:
  explicit Result(const View& v) : RowMatrix(v) {}
  void store() const;
};

// [..., M, N] as a batch of matrices: the view's own, or an f32 copy in which broadcast dims stay broadcast. An absent
// view makes an absent batch.
class MatrixBatch {
 public:
  enum Access { read, write, read_write };

  explicit MatrixBatch(const View& v, Access access = read);
  Matrix operator[](int64_t index) const;
  explicit operator bool() const { return bool(view_); }
  void store() const;  // as Result::store

 private:
  View view_, original_, compact_;
  Scratch copy_;
};

// Calls f(first_row, panel) for the rows of w [N, K], in f32. A weight of another dtype is converted a panel at a time,
// which bounds the memory and keeps the panel in the cache for the product that follows.
template <class F>
void for_each_panel(const View& w, F f) {
  constexpr int64_t kPanelFloats = int64_t{2} << 20;
  if (w.dtype == DType::f32) return f(int64_t{0}, *Operand(w));
  const int64_t rows = w.shape[0], step = std::max<int64_t>(64, kPanelFloats / std::max<int64_t>(w.shape[1], 1));
  for (int64_t begin = 0; begin < rows; begin += step) {
    f(begin, *Operand(part_of(w, 0, begin, std::min(step, rows - begin))));
  }
}

// c [M, K] = a [M, N] w [N, K] + beta * c.
void gemm_weight(const Matrix& c, const Matrix& a, const View& w, float beta = 0);
// y [M, N] = x [M, K] w[N, K]^T + bias, where bias may be absent.
void linear_into(const Matrix& y, const Matrix& x, const Matrix& w, const float* bias);
void linear_into(const Matrix& y, const Matrix& x, const View& w, const View& bias);

}  // namespace wick
