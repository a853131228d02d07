// Matrix products and linear layers, by cuBLASLt.
#include <array>

#include "wick/backend/cuda/cublaslt.h"

namespace wick {

namespace {

// a, with its leading dims made those of `batch` by stride 0.
View with_batch(const View& a, const Shape& batch) {
  View v{a.data, a.dtype, batch, {}};
  const int missing = batch.rank() + 2 - a.rank();
  for (int i = 0; i < batch.rank(); ++i)
    v.stride.push_back(i < missing || a.shape[i - missing] == 1 ? 0 : a.stride[i - missing]);
  for (int i = -2; i < 0; ++i) {
    v.shape.push_back(a.dim(i));
    v.stride.push_back(a.stride[a.rank() + i]);
  }
  return v;
}

bool same_for_all(const View& v) {
  for (int i = 0; i + 2 < v.rank(); ++i)
    if (v.stride[i] != 0 && v.shape[i] != 1) return false;
  return true;
}

View last_two_dims(const View& v) {
  const int first = v.rank() - 2;
  return {v.data, v.dtype, {v.shape[first], v.shape[first + 1]}, {v.stride[first], v.stride[first + 1]}};
}

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
  std::array<int64_t, kMaxRank> extent;
  std::array<std::array<int64_t, 3>, kMaxRank> step;  // of c, a, b

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
    if (rank == 0) {
      rank = 1;
      extent[0] = 1;
      step[0] = {0, 0, 0};
    }
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
    cublas.gemm(moved(c, at[0]), moved(a, at[1]), moved(b, at[2]), alpha, beta, nullptr, batch);
  }
}

}  // namespace

void CudaBackend::matmul(View c, View a, View b, float alpha, float beta) {
  if (c.numel() == 0) return;
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

void CudaBackend::linear(View y, View x, View w, View bias) {
  if (y.numel() == 0) return;
  const MatrixInput input(*this, x, x.dtype), weight(*this, w, x.dtype);
  const MatrixOutput product(*this, y, x.dtype);
  const auto start_from_bias = [&] {
    View every_row{bias.data, bias.dtype, {product->rows, product->cols}, {0, bias.stride[0]}};
    copy(product->view(), every_row);
  };
  if (input->cols == 0) {
    bias ? start_from_bias() : fill(product->view(), 0);
  } else if (!bias) {
    cublas().gemm(*product, *input, weight->t());
  } else {
    const DenseInput shift(*this, bias, x.dtype);
    if (product->transposed || !cublas().gemm(*product, *input, weight->t(), 1, 0, shift.as<void>())) {
      start_from_bias();
      cublas().gemm(*product, *input, weight->t(), 1, 1);
    }
  }
  product.finish();
}

}  // namespace wick
