// The LoRA linear (Hu et al., 2021): y = x w^T + bias + scale * s up^T with s = x down^T.
// M rows, K inputs, N outputs, R rank: x [M, K], w [N, K], y [M, N], down [R, K], up [N, R], s and ds [M, R].
#include <omp.h>

#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/gemm.h"

namespace wick {

namespace {

// This thread's part of [0, extent) inside a parallel region.
struct Part {
  int64_t begin, end;

  explicit Part(int64_t extent) {
    constexpr int64_t kGrain = 16;  // a vector of floats
    const int64_t tiles = (extent + kGrain - 1) / kGrain, threads = omp_get_num_threads(), me = omp_get_thread_num();
    begin = std::min(extent, tiles * me / threads * kGrain);
    end = std::min(extent, tiles * (me + 1) / threads * kGrain);
  }
};

// The gradients of both factors by way of ds = scale * dy up, which stays in `ds`. Either view may be unwanted.
// All in one parallel region: the products are small, and each would pay for a fork and a join of its own.
void factor_gradients(const View& ddown, const View& dup, const Matrix& ds, const Matrix& dy, const View& x,
                      const Matrix& s, const Matrix& up, float scale) {
  const Result grad_down(ddown), grad_up(dup);
  const Operand input(ddown ? x : View());
#pragma omp parallel if (dy.rows * dy.cols > 4096)
  {
    const Part outputs(dy.cols);
    if (dup)
      gemm(grad_up->row_range(outputs.begin, outputs.end), dy.col_range(outputs.begin, outputs.end).t(), s, scale);
    const Part rows(dy.rows);
    gemm(ds.row_range(rows.begin, rows.end), dy.row_range(rows.begin, rows.end), up, scale);
#pragma omp barrier
    const Part inputs(input->cols);
    if (ddown) gemm(grad_down->col_range(inputs.begin, inputs.end), ds.t(), input->col_range(inputs.begin, inputs.end));
  }
  grad_down.store();
  grad_up.store();
}

}  // namespace

void CpuBackend::lora_linear(View y, View s, View x, View w, View bias, View down, View up, float scale) {
  const Operand input(x), a(down), b(up);
  const Scratch own_s(s ? 0 : input->rows * a->rows);
  const Result saved(s ? s : contiguous_view(own_s.data(), {input->rows, a->rows}));
  const Result product(y);
  linear_into(*saved, *input, *a, {});
  linear_into(*product, *input, w, bias);
  gemm(*product, *saved, b->t(), scale, 1);
  saved.store();
  product.store();
}

void CpuBackend::lora_linear_backward(View dx, View ddown, View dup, View dy, View x, View s, View w, View down,
                                      View up, float scale) {
  const Operand grad(dy), a(down), b(up), saved(dup ? s : View());
  const Scratch work(grad->rows * b->cols);
  const Matrix ds = row_major(work.data(), grad->rows, b->cols);
  factor_gradients(ddown, dup, ds, *grad, x, *saved, *b, scale);
  if (!dx) return;
  const Result out(dx);
  gemm(*out, ds, *a);
  gemm_weight(*out, *grad, w, 1);
  out.store();
}

void CpuBackend::lora_backward(View ddown, View dup, View dy, View x, View down, View up, float scale) {
  const Operand grad(dy), input(x), a(down), b(up);
  const Scratch work(2 * grad->rows * a->rows);
  const Matrix s = row_major(work.data(), grad->rows, a->rows), ds = {s.data + s.rows * s.cols, s.rows, s.cols, s.cols};
  if (dup) linear_into(s, *input, *a, {});
  factor_gradients(ddown, dup, ds, *grad, x, s, *b, scale);
}

}  // namespace wick
