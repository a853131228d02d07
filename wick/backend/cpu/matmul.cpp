// Matrix products and linear layers.
#include <cassert>

#include "wick/backend/cpu/blocks.h"
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/fp8.h"
#include "wick/backend/cpu/gemm.h"
#include "wick/backend/cpu/onednn.h"
#include "wick/backend/cpu/parallel.h"

namespace wick {

namespace {

// Small products go to one thread each; a large one gets all threads.
void gemm_batch(const MatrixBatch& c, const MatrixBatch& a, const MatrixBatch& b, int64_t count, double flops,
                float alpha, float beta) {
  constexpr double kLargeFlops = 1e8;
  const bool shared = count >= omp_get_max_threads() && flops < kLargeFlops && flops * double(count) > 1e5;
  with_team(shared, [&](const TeamMember& me) {
    for (int64_t i = me.begin(count); i < me.end(count); ++i) gemm(c[i], a[i], b[i], alpha, beta);
  });
}

void set_rows(const Matrix& y, const float* bias) {
  for (int64_t i = 0; i < y.rows; ++i)
    for (int64_t j = 0; j < y.cols; ++j) y.at(i, j) = bias ? bias[j] : 0;
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
  const int64_t count = Shape(c.shape.begin(), c.shape.end() - 2).numel();
  const double flops = 2.0 * double(c.dim(-2)) * double(c.dim(-1)) * double(a.dim(-1));
  gemm_batch(product, left, right, count, flops, alpha, beta);
  product.store();
}

void gemm_weight(const Matrix& c, const Matrix& a, const View& w, float beta) {
  if (w.dtype == DType::fp8_product) return gemm_weight(c, *Fp8Rows(a, w), decoded_rows(w), beta);
  if (w.shape[0] == 0) return gemm(c, a, *Operand(w), 1, beta);
  for_each_panel(w, [&](int64_t begin, const Matrix& panel) {
    gemm(c, a.col_range(begin, begin + panel.rows), panel, 1, begin == 0 ? beta : 1);
  });
}

void linear_into(const Matrix& y, const Matrix& x, const Matrix& w, const float* bias) {
  // oneDNN's matmul beats its sgemm at x w^T and adds the bias on the way, but not for a few rows.
  constexpr int64_t kFewRows = 4;
  if (y.rows < kFewRows || y.cols == 0 || x.cols == 0) {
    set_rows(y, bias);
    return gemm(y, x, w.t(), 1, 1);
  }
  const auto out = describe(y), in = describe(x), weight = describe(w.t());
  const dnnl::memory::desc shift({1, y.cols}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::ab);
  const auto desc = bias ? dnnl::matmul::desc(in, weight, shift, out) : dnnl::matmul::desc(in, weight, out);
  const dnnl::matmul::primitive_desc chosen(desc, scratchpad_attributes(), cpu_engine());
  Arguments arguments{{DNNL_ARG_SRC, memory_over(in, x.data)},
                      {DNNL_ARG_WEIGHTS, memory_over(weight, w.data)},
                      {DNNL_ARG_DST, memory_over(out, y.data)}};
  if (bias) arguments.emplace(DNNL_ARG_BIAS, memory_over(shift, bias));
  execute<dnnl::matmul>(chosen, std::move(arguments));
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
