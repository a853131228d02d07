// Matrix products and linear layers.
#include <cassert>

#include "wick/backend/cpu/blocks.h"
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/fp8.h"
#include "wick/backend/cpu/gemm.h"
#include "wick/backend/cpu/parallel.h"
#include "wick/backend/cpu/products.h"

namespace wick {

namespace {

// Small products of a batch share chunks, large ones are cut into tiles.
void gemm_batch(const MatrixBatch& c, const MatrixBatch& a, const MatrixBatch& b, int64_t count, float alpha,
                float beta) {
  Products products;
  for (int64_t i = 0; i < count; ++i) products.add(c[i], a[i], b[i], alpha, beta);
  products.run();
}

void set_rows(const Matrix& y, const float* bias) {
  for (int64_t i = 0; i < y.rows; ++i)
    for (int64_t j = 0; j < y.cols; ++j) y.at(i, j) = bias[j];
}

// c = a b for b in fp8_product.
void matmul_fp8(const View& c, const View& a, const View& b, float alpha, float beta) {
  check(b.rank() == 2 && alpha == 1 && beta == 0, "matmul: {} of shape {} should be a matrix, and its product alone",
        name_of(b.dtype), b.shape);
  const Result product(c);
  gemm_weight(*product, *Operand(a), b);
  product.store();
}

}  // namespace

void CpuBackend::matmul(View c, View a, View b, float alpha, float beta) {
  assert(c.dtype == DType::f32 && c.rank() >= 2 && a.rank() <= c.rank() && b.rank() <= c.rank());
  if (b.dtype == DType::fp8_product) return matmul_fp8(c, a, b, alpha, beta);
  const Shape batch(c.shape.begin(), c.shape.end() - 2);
  a = with_batch(a, batch);
  b = with_batch(b, batch);
  if (same_for_all(b)) {
    const auto rows_a = flatten_rows(a), rows_c = flatten_rows(c);
    if (rows_a && rows_c) {
      a = *rows_a;
      b = last_two_dims(b);
      c = *rows_c;
      if (b.dtype != DType::f32 && alpha == 1 && as_matrix(c)) return gemm_weight(*as_matrix(c), *Operand(a), b, beta);
    }
  }
  const MatrixBatch product(c, beta == 0 ? MatrixBatch::write : MatrixBatch::read_write), left(a), right(b);
  gemm_batch(product, left, right, Shape(c.shape.begin(), c.shape.end() - 2).numel(), alpha, beta);
  product.store();
}

void gemm_weight(const Matrix& c, const Matrix& a, const View& w, float beta) {
  if (w.dtype == DType::fp8_product) return gemm_weight(c, *Fp8Rows(a, w), decoded_rows(w), beta);
  if (w.shape[0] == 0) return gemm(c, a, *Operand(w), 1, beta);
  for_each_panel(w, [&](int64_t begin, const Matrix& panel) {
    gemm(c, a.col_range(begin, begin + panel.rows), panel, 1, begin == 0 ? beta : 1);
  });
}

// oneDNN's sgemm: with one thread its matmul is no faster at x w^T, and choosing one takes longer than a small product.
void linear_into(const Matrix& y, const Matrix& x, const Matrix& w, const float* bias) {
  if (!bias) return gemm(y, x, w.t());
  const Tiles tiles(y.rows, y.cols, x.cols);
  parallel_tasks(tiles.count(), [&](int64_t tile) {
    const auto rows = tiles.rows(tile), cols = tiles.cols(tile);
    const Matrix part = y.row_range(rows.begin, rows.end).col_range(cols.begin, cols.end);
    set_rows(part, bias + cols.begin);
    gemm_here(part, x.row_range(rows.begin, rows.end), w.row_range(cols.begin, cols.end).t(), 1, 1);
  });
}

void linear_into(const Matrix& y, const Matrix& x, const View& w, const View& bias) {
  if (w.dtype == DType::fp8_product) return linear_into(y, *Fp8Rows(x), decoded_rows(w), bias);
  const DenseInput b(bias);
  if (linear_int8(y, x, w, b.data()) || linear_one_row(y, x, w, b.data())) return;
  for_each_panel(w, [&](int64_t begin, const Matrix& panel) {
    linear_into(y.col_range(begin, begin + panel.rows), x, panel, bias ? b.data() + begin : nullptr);
  });
}

void CpuBackend::linear(View y, View x, View w, View bias, View residual) {
  const Result product(y);
  linear_into(*product, *Operand(x), w, bias);
  product.store();
  if (residual) accumulate(y, residual, 1);
}

}  // namespace wick
