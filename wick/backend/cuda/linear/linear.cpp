// Matrix products by cuBLASLt, and linear layers by the way that plan.h chooses; for cuBLASLt weights in blocks are
// decoded a slice at a time, those in rows of codes whole.
#include <algorithm>
#include <array>

#include "wick/backend/cuda/linear/extended_gemm.h"
#include "wick/backend/cuda/linear/few_rows.h"
#include "wick/backend/cuda/linear/fp8.h"
#include "wick/backend/cuda/linear/plan.h"
#include "wick/backend/cuda/runtime/cublaslt.h"
#include "wick/backend/cuda/runtime/ways.h"
#include "wick/backend/scratch.h"

namespace wick {

namespace {

// Matrices over a batch, to read: the view's own, or a copy in which broadcast dims stay broadcast.
class BatchInput {
 public:
  BatchInput(CudaBackend& cuda, const View& v, DType dtype) : view_(v) {
    if (v.dtype == dtype && as_matrix(v)) return;
    View once = v;
    for (int i = 0; i + 2 < v.rank(); ++i)
      if (v.stride[i] == 0) once.shape[i] = 1;
    copy_.emplace(cuda, once, dtype);
    view_ = with_batch(copy_->view(), Shape(v.shape.begin(), v.shape.end() - 2));
  }
  const View& operator*() const { return view_; }

 private:
  std::optional<DenseInput> copy_;
  View view_;
};

// The dims of a batch, merged where one stride walks them for all three; at least one.
struct BatchDims {
  int rank = 0;
  std::array<int64_t, kMaxRank> extent{1};
  std::array<std::array<int64_t, 3>, kMaxRank> step{};  // of c, a, b

  BatchDims(const View& c, const View& a, const View& b) {
    for (int i = 0; i + 2 < c.rank(); ++i) {
      if (c.shape[i] == 1) continue;
      const std::array<int64_t, 3> steps{c.stride[i], a.stride[i], b.stride[i]};
      const size_t last = size_t(rank - 1);
      bool merges = rank > 0;
      for (size_t n = 0; n < 3 && merges; ++n) merges = step[last][n] == steps[n] * c.shape[i];
      if (!merges) extent[size_t(rank++)] = 1;
      extent[size_t(rank - 1)] *= c.shape[i];
      step[size_t(rank - 1)] = steps;
    }
    rank = std::max(rank, 1);
  }
};

DeviceMatrix moved(const View& v, int64_t elements) {
  DeviceMatrix m = *as_matrix(v);
  m.data = static_cast<char*>(m.data) + elements * int64_t(size_of(v.dtype));
  return m;
}

// One call of cuBLASLt for the innermost dim of the batch, again for each index of the outer ones.
void gemm_batch(Cublas& cublas, const View& c, const View& a, const View& b, float alpha, float beta) {
  const BatchDims dims(c, a, b);
  const size_t inner = size_t(dims.rank - 1);
  const GemmBatch batch{dims.extent[inner], dims.step[inner][0], dims.step[inner][1], dims.step[inner][2]};
  int64_t calls = 1;
  for (size_t d = 0; d < inner; ++d) calls *= dims.extent[d];
  for (int64_t call = 0; call < calls; ++call) {
    std::array<int64_t, 3> at{};
    int64_t rest = call;
    for (size_t d = inner; d-- > 0; rest /= dims.extent[d])
      for (size_t n = 0; n < 3; ++n) at[n] += rest % dims.extent[d] * dims.step[d][n];
    cublas.gemm(moved(c, at[0]), moved(a, at[1]), moved(b, at[2]), alpha, beta, batch);
  }
}

// Calls f(first, count) for parts of `all` lines of `length` elements, whole multiples of `unit`: slices of
// kSliceElements.
template <class F>
void for_slices(int64_t all, int64_t length, int64_t unit, const F& f) {
  const int64_t most = std::max(kSliceElements / std::max<int64_t>(length, 1) / unit * unit, unit);
  for (int64_t first = 0; first < all; first += most) f(first, std::min(most, all - first));
}

// c = alpha * a b + beta * c for b of blocks, some of its columns at a time, so that no sum is split.
void matmul_blocks(CudaBackend& cuda, const View& c, const View& a, const View& b, float alpha, float beta) {
  check(b.rank() == 2, "matmul: {} of shape {} should be a matrix", name_of(b.dtype), to_string(b.shape));
  for_slices(b.shape[1], b.shape[0], block_of(b.dtype).elements, [&](int64_t first, int64_t count) {
    const DenseInput part(cuda, part_of(b, 1, first, count), a.dtype);
    View out = c;
    out.data = c.as<char>() + first * c.stride.back() * int64_t(size_of(c.dtype));
    out.shape[c.rank() - 1] = count;
    cuda.matmul(out, a, part.view(), alpha, beta);
  });
}

// y = x w^T + bias + residual, for w of any dtype.
void linear_product(CudaBackend& cuda, const DeviceMatrix& y, const DeviceMatrix& x, const View& w, const View& bias,
                    const DeviceMatrix& residual) {
  const MatrixInput weight(cuda, w, x.dtype);
  const DenseInput shift(cuda, bias, x.dtype);
  if (x.cols > 0 && cuda.cublas().linear(y, x, weight->t(), shift.as<void>(), residual)) return;
  const View every_row = bias ? View{bias.data, bias.dtype, {y.rows, y.cols}, {0, bias.stride[0]}} : View();
  if (residual.data)
    cuda.copy(y.view(), residual.view());
  else if (bias)
    cuda.copy(y.view(), every_row);
  else
    cuda.fill(y.view(), 0);
  if (residual.data && bias) cuda.binary(Binary::add, y.view(), y.view(), every_row);
  if (x.cols > 0) cuda.cublas().gemm(y, x, weight->t(), 1, 1);
}

// y = x w^T + bias + residual, for w in blocks.
void sliced_linear(CudaBackend& cuda, const LinearCall& l) {
  for_slices(l.w.shape[0], l.w.shape[1], 1, [&](int64_t first, int64_t count) {
    linear_product(cuda, l.y.col_range(first, count), l.x, part_of(l.w, 0, first, count),
                   l.bias ? part_of(l.bias, 0, first, count) : View(),
                   l.residual.data ? l.residual.col_range(first, count) : DeviceMatrix{});
  });
}

// y = swiglu(x w^T + bias) of many tokens in one kernel.
void gated_product(CudaBackend& cuda, const LinearCall& l) {
  ExtendedGemm g{.y = l.y, .x = l.x, .w = as_matrix(l.w)->t(), .gated = true};
  const DenseInput shift(cuda, l.bias, DType::f32);
  g.bias = shift.as<float>();
  gemm_sm90(cuda, g, plan_gemm_sm90(cuda, g));
}

LinearWay planned(const Gpu& gpu, const LinearCall& l) {
  const LinearWay way = plan_linear(gpu, l);
  if (explains()) explain(to_string(l), std::string(to_string(way)));
  return way;
}

}  // namespace

Tensor CudaBackend::decoded(const View& w, DType dtype) {
  return decoded_(w, dtype, memory(), [&](const View& y) { copy(y, w); });
}

void CudaBackend::matmul(View c, View a, View b, float alpha, float beta) {
  if (c.numel() == 0) return;
  if (b.dtype == DType::fp8_product && a.dim(-1) > 0) {
    check(b.rank() == 2 && alpha == 1 && beta == 0, "matmul: {} of shape {} should be a matrix, and its product alone",
          name_of(b.dtype), to_string(b.shape));
    return fp8_dx(*this, c, a, b);
  }
  if (has_row_format(b.dtype)) return matmul(c, a, decoded(b, a.dtype), alpha, beta);
  if (is_block(b.dtype)) return matmul_blocks(*this, c, a, b, alpha, beta);
  if (a.dim(-1) == 0 || alpha == 0) return beta == 0 ? fill(c, 0) : affine(c, c, beta, 0);
  const Shape batch(c.shape.begin(), c.shape.end() - 2);
  a = with_batch(a, batch);
  b = with_batch(b, batch);
  if (same_for_all(b)) {
    const auto rows_a = as_rows(a), rows_c = as_rows(c);
    if (rows_a && rows_c) {
      a = rows_a->view();
      b = last_two_dims(b);
      c = rows_c->view();
    }
  }
  const BatchInput left(*this, a, a.dtype), right(*this, b, a.dtype);
  if (as_matrix(c) && (c.dtype == a.dtype || c.dtype == DType::f32))
    return gemm_batch(cublas(), c, *left, *right, alpha, beta);
  const DType dtype = c.dtype == a.dtype ? c.dtype : DType::f32;
  const Scratch work(*this, size_t(c.numel()) * size_of(dtype));
  const View product = contiguous_view(work.as<void>(), dtype, c.shape);
  if (beta != 0) copy(product, c);
  gemm_batch(cublas(), product, *left, *right, alpha, beta);
  copy(c, product);
}

void CudaBackend::linear(View y, View x, View w, View bias, View residual) {
  if (y.numel() == 0) return;
  if (w.dtype == DType::fp8_product && x.dim(-1) > 0) return fp8_linear(*this, y, x, w, bias, residual);
  const MatrixInput input(*this, x, x.dtype), start(*this, residual, x.dtype);
  const MatrixOutput product(*this, y, x.dtype);
  const LinearCall call{*product, *input, w, bias, *start};
  const LinearWay way = planned(*this, call);
  if (way == LinearWay::few_rows)
    few_rows_linear(*this, call);
  else if (way == LinearWay::sliced)
    sliced_linear(*this, call);
  else if (way == LinearWay::decoded)
    linear(product->view(), input->view(), decoded(w, x.dtype), bias, residual ? start->view() : View());
  else
    linear_product(*this, *product, *input, w, bias, *start);
  product.finish();
}

void CudaBackend::gated_linear(View y, View x, View w, View bias, const LoraFactors& lora) {
  if (w.dtype == DType::fp8_product) return ComposedBackend::gated_linear(y, x, w, bias, lora);
  const auto input = as_rows(x), product = as_rows(y);
  if (lora.down && y.numel() > 0 && lora_few_rows(*this, {.y = y, .x = x, .w = w, .bias = bias, .lora = lora}, true))
    return;
  if (!lora.down && y.numel() > 0 && input && product) {
    const LinearCall call{*product, *input, w, bias, {}, /*gated=*/true};
    const LinearWay way = planned(*this, call);
    if (way == LinearWay::few_rows) return few_rows_linear(*this, call);
    if (way == LinearWay::extended) return gated_product(*this, call);
    if (way == LinearWay::decoded) return gated_linear(y, x, decoded(w, x.dtype), bias, lora);
  }
  ComposedBackend::gated_linear(y, x, w, bias, lora);
}

}  // namespace wick
