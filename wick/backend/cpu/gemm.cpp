#include "wick/backend/cpu/gemm.h"

#include <dnnl.h>

#include <algorithm>
#include <cassert>

#include "wick/backend/backend.h"
#include "wick/backend/cpu/onednn.h"
#include "wick/backend/cpu/products.h"
#include "wick/core/error.h"

namespace wick {

namespace {

void scale_rows(const Matrix& c, float beta) {
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.cols; ++j) {
      float& value = c.data[i * c.ld + j];
      value = beta == 0 ? 0 : beta * value;
    }
}

int64_t rows_of(const View& v) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < v.rank(); ++i) rows *= v.shape[i];
  return rows;
}

std::optional<Matrix> as_rows(const View& v) {
  const auto flat = flatten_rows(v);
  return flat ? as_matrix(*flat) : std::nullopt;
}

}  // namespace

void gemm(const Matrix& c, const Matrix& a, const Matrix& b, float alpha, float beta) {
  Products product;
  product.add(c, a, b, alpha, beta);
  product.run();
}

void gemm_here(const Matrix& c, const Matrix& a, const Matrix& b, float alpha, float beta) {
  assert(a.rows == c.rows && b.cols == c.cols && a.cols == b.rows);
  if (c.transposed) return gemm_here(c.t(), b.t(), a.t(), alpha, beta);
  if (c.rows == 0 || c.cols == 0) return;
  if (a.cols == 0) return scale_rows(c, beta);
  prepare_onednn();
  const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', c.rows, c.cols, a.cols,
                                          alpha, a.data, a.ld, b.data, b.ld, beta, c.data, c.ld);
  if (status == dnnl_out_of_memory)
    throw OutOfMemory(fmt::format("out of memory: the CPU could not give oneDNN room to multiply {} x {} by {} x {}",
                                  a.rows, a.cols, b.rows, b.cols));
  assert(status == dnnl_success);
}

std::optional<Matrix> as_matrix(const View& v) {
  if (v.dtype != DType::f32) return std::nullopt;
  assert(v.rank() == 2);
  const int64_t rows = v.dim(-2), cols = v.dim(-1);
  const int64_t row_stride = v.stride[v.rank() - 2], col_stride = v.stride[v.rank() - 1];
  // A single row or column has no stride to speak of: BLAS only wants ld to be large enough.
  if ((col_stride == 1 || cols <= 1) && (row_stride >= cols || rows <= 1))
    return Matrix{v.as<float>(), rows, cols, std::max<int64_t>({rows > 1 ? row_stride : cols, cols, 1}), false};
  if ((row_stride == 1 || rows <= 1) && (col_stride >= rows || cols <= 1))
    return Matrix{v.as<float>(), rows, cols, std::max<int64_t>({cols > 1 ? col_stride : rows, rows, 1}), true};
  return std::nullopt;
}

RowMatrix::RowMatrix(const View& v) : view_(v) {
  if (!v) return;
  if (const auto matrix = as_rows(v)) {
    matrix_ = *matrix;
    return;
  }
  copy_ = Scratch(v.numel());
  matrix_ = row_major(copy_.data(), rows_of(v), v.dim(-1));
}

Operand::Operand(const View& v) : RowMatrix(v) {
  if (copy_) cpu_backend().copy(contiguous_view(copy_.data(), v.shape), v);
}

void Result::store() const {
  if (copy_) cpu_backend().copy(view_, contiguous_view(copy_.data(), view_.shape));
}

MatrixBatch::MatrixBatch(const View& v, Access access) : view_(v) {
  if (!v || as_matrix(last_two_dims(v))) return;
  original_ = v;
  for (int i = 0; i + 2 < v.rank(); ++i)
    if (v.stride[i] == 0) original_.shape[i] = 1;
  copy_ = Scratch(original_.numel());
  compact_ = contiguous_view(copy_.data(), original_.shape);
  if (access != write) cpu_backend().copy(compact_, original_);
  view_ = compact_;
  view_.shape = v.shape;
  for (int i = 0; i + 2 < v.rank(); ++i)
    if (original_.shape[i] != v.shape[i]) view_.stride[i] = 0;
}

void MatrixBatch::store() const {
  if (copy_) cpu_backend().copy(original_, compact_);
}

Matrix MatrixBatch::operator[](int64_t index) const {
  int64_t offset = 0;
  for (int i = view_.rank() - 3; i >= 0; --i) {
    offset += index % view_.shape[i] * view_.stride[i];
    index /= view_.shape[i];
  }
  Matrix m = *as_matrix(last_two_dims(view_));
  m.data += offset;
  return m;
}

}  // namespace wick
