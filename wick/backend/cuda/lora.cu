// The LoRA linear (Hu et al., 2021): y = x w^T + bias + scale * s up^T with s = x down^T.
// M rows, K inputs, N outputs, R rank: x [M, K], w [N, K], y [M, N], down [R, K], up [N, R], s and ds [M, R].
#include "wick/backend/cuda/cublaslt.h"
#include "wick/backend/cuda/lora_factors.h"
#include "wick/backend/cuda/lora_gemm.h"

namespace wick {

namespace {

// A matrix of the pool's memory.
class WorkMatrix {
 public:
  WorkMatrix(CudaBackend& cuda, DType dtype, int64_t rows, int64_t cols)
      : memory_(cuda, size_t(rows * cols) * size_of(dtype)), matrix_{memory_.as<void>(), dtype, rows, cols, cols} {}
  const DeviceMatrix& operator*() const { return matrix_; }

 private:
  Scratch memory_;
  DeviceMatrix matrix_;
};

void zero(CudaBackend& cuda, const View& v) {
  if (v && v.numel() > 0) cuda.fill(v, 0);
}

// dup = scale * dy^T s and ddown = ds^T x; either may be unwanted.
void compose_gradients(CudaBackend& cuda, const View& ddown, const View& dup, const DeviceMatrix& ds,
                       const DeviceMatrix& dy, const DeviceMatrix& x, const DeviceMatrix& s, float scale) {
  const MatrixOutput grad_down(cuda, ddown, DType::f32), grad_up(cuda, dup, DType::f32);
  if (dup) cuda.cublas().gemm(*grad_up, dy.t(), s, scale);
  if (ddown) cuda.cublas().gemm(*grad_down, ds.t(), x);
  grad_down.finish();
  grad_up.finish();
}

// The same by our own kernels, in one launch.
void fused_gradients(CudaBackend& cuda, const View& ddown, const View& dup, const DeviceMatrix& ds,
                     const DeviceMatrix& dy, const DeviceMatrix& x, const DeviceMatrix& s, float scale, bool follows) {
  const MatrixOutput grad_down(cuda, ddown, DType::f32), grad_up(cuda, dup, DType::f32);
  FactorGradient gradients[2];
  int count = 0;
  if (dup) gradients[count++] = {*grad_up, dy, s, scale};
  if (ddown) gradients[count++] = {grad_down->t(), x, ds, 1};
  if (count > 0) factor_gradients(cuda, gradients, count, follows);
  grad_down.finish();
  grad_up.finish();
}

constexpr int64_t padded(int64_t rank) { return (rank + 7) / 8 * 8; }

bool rows_aligned(const DeviceMatrix& m) {
  const int64_t elements = 16 / int64_t(size_of(m.dtype));
  return m.ld % elements == 0 && (m.transposed ? m.rows : m.cols) % elements == 0 &&
         reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
}

// A factor in the dtype of the activations, with 16-byte aligned rows: itself, or a copy.
class HalfFactor {
 public:
  HalfFactor(CudaBackend& cuda, const View& factor, DType dtype) {
    if (const auto direct = as_matrix(factor); direct && rows_aligned(*direct) && factor.dtype == dtype) {
      matrix_ = *direct;
      return;
    }
    copy_.emplace(cuda, dtype, factor.shape[0], padded(factor.shape[1]));
    matrix_ = **copy_;
    if (matrix_.cols != factor.shape[1]) cuda.fill(matrix_.view(), 0);
    matrix_.cols = factor.shape[1];
    cuda.copy(matrix_.view(), factor);
  }
  const DeviceMatrix& operator*() const { return matrix_; }
  const DeviceMatrix* operator->() const { return &matrix_; }

 private:
  std::optional<WorkMatrix> copy_;
  DeviceMatrix matrix_;
};

// Both factors as the kernels read them: of one dtype, which is f32 or the one they compute with, and with rows that
// are 16-byte aligned.
bool readable(const View& factor, DType dtype) {
  const auto matrix = as_matrix(factor);
  return matrix && rows_aligned(*matrix) && (factor.dtype == DType::f32 || factor.dtype == dtype);
}

class Factor {
 public:
  Factor(CudaBackend& cuda, const View& factor, const View& other, DType dtype) {
    if (readable(factor, dtype) && readable(other, dtype) && factor.dtype == other.dtype) {
      matrix_ = *as_matrix(factor);
      return;
    }
    copy_.emplace(cuda, dtype, factor.shape[0], padded(factor.shape[1]));
    cuda.fill((**copy_).view(), 0);
    matrix_ = **copy_;
    matrix_.cols = factor.shape[1];
    cuda.copy(matrix_.view(), factor);
  }
  const DeviceMatrix& operator*() const { return matrix_; }
  const DeviceMatrix* operator->() const { return &matrix_; }

 private:
  std::optional<WorkMatrix> copy_;
  DeviceMatrix matrix_;
};

}  // namespace

namespace {

// y = x w^T + bias + scale * s up^T in two launches, if the shapes fit.
bool fused_forward(CudaBackend& cuda, const View& y, const View& s, const View& x, const View& w, const View& bias,
                   const View& down, const View& up, float scale) {
  const auto product = as_rows(y), input = as_rows(x), weight = as_matrix(w);
  const auto saved = s ? as_rows(s) : DeviceMatrix{};
  const bool dense_bias = !bias || (bias.dtype == DType::f32 && bias.contiguous());
  if (!product || !input || !weight || !saved || !dense_bias || !factors_fit(cuda, *input)) return false;
  if (s && (s.dtype != x.dtype || saved->transposed)) return false;
  ExtendedGemm g{.y = *product, .x = *input, .w = weight->t(), .bias = bias.as<float>()};
  if (!g.w.transposed || !extended_gemm_fits(cuda, g)) return false;
  const HalfFactor a(cuda, down, x.dtype), b(cuda, up, x.dtype);
  if (a->transposed || b->transposed) return false;
  const WorkMatrix low(cuda, x.dtype, input->rows, padded(a->rows));
  const Projection projection{*saved, *input, a->t(), 1, *low, scale};
  project(cuda, &projection, 1);
  g.low = *low;
  g.groups[g.group_count++] = {b->t()};
  extended_gemm(cuda, g, true);
  return true;
}

// dx = dy w + ds down, and the factors' gradients, in three launches, if the shapes fit.
bool fused_backward(CudaBackend& cuda, const View& dx, const View& ddown, const View& dup, const View& dy,
                    const View& x, const View& s, const View& w, const View& down, const View& up, float scale) {
  const auto grad = as_rows(dy), weight = as_matrix(w), out = dx ? as_rows(dx) : DeviceMatrix{};
  const auto input = ddown ? as_rows(x) : DeviceMatrix{}, saved = dup ? as_rows(s) : DeviceMatrix{};
  if (!grad || !weight || !out || !input || !saved || !factors_fit(cuda, *grad)) return false;
  if (ddown && (x.dtype != dy.dtype || !factors_fit(cuda, *input))) return false;
  if (dup && (s.dtype != dy.dtype || saved->transposed || !rows_aligned(*saved))) return false;
  ExtendedGemm g{.y = *out, .x = *grad, .w = *weight};
  if (dx && (g.w.transposed || !extended_gemm_fits(cuda, g))) return false;
  const HalfFactor a(cuda, down, dy.dtype), b(cuda, up, dy.dtype);
  if (a->transposed || b->transposed) return false;
  const WorkMatrix ds(cuda, dy.dtype, grad->rows, padded(a->rows));
  const Projection projection{*ds, *grad, *b, scale, {}, 1};
  project(cuda, &projection, 1);
  fused_gradients(cuda, ddown, dup, *ds, *grad, *input, *saved, scale, true);
  if (!dx) return true;
  g.low = *ds;
  g.groups[g.group_count++] = {*a};
  extended_gemm(cuda, g, true);
  return true;
}

}  // namespace

void CudaBackend::lora_linear(View y, View s, View x, View w, View bias, View down, View up, float scale) {
  if (x.numel() == 0 || down.numel() == 0 || y.numel() == 0) {
    zero(*this, s);
    return linear(y, x, w, bias);
  }
  if (fused_forward(*this, y, s, x, w, bias, down, up, scale)) return;
  const MatrixInput input(*this, x, x.dtype), a(*this, down, x.dtype), b(*this, up, x.dtype);
  const MatrixOutput product(*this, y, x.dtype), saved(*this, s, x.dtype);
  std::optional<WorkMatrix> own;
  const DeviceMatrix& low = s ? *saved : *own.emplace(*this, x.dtype, input->rows, a->rows);
  cublas().gemm(low, *input, a->t());
  linear(product->view(), input->view(), w, bias);
  cublas().gemm(*product, low, b->t(), scale, 1);
  saved.finish();
  product.finish();
}

void CudaBackend::lora_linear_backward(View dx, View ddown, View dup, View dy, View x, View s, View w, View down,
                                       View up, float scale) {
  if (dy.numel() == 0 || x.numel() == 0 || down.numel() == 0) {
    zero(*this, ddown);
    zero(*this, dup);
    if (dx && dx.numel() > 0) matmul(dx, dy, w, 1, 0);
    return;
  }
  if (fused_backward(*this, dx, ddown, dup, dy, x, s, w, down, up, scale)) return;
  const MatrixInput grad(*this, dy, dy.dtype), a(*this, dx ? down : View(), dy.dtype), b(*this, up, dy.dtype),
      input(*this, ddown ? x : View(), dy.dtype), saved(*this, dup ? s : View(), dy.dtype);
  const WorkMatrix ds(*this, dy.dtype, grad->rows, b->cols);
  if (dx || ddown) cublas().gemm(*ds, *grad, *b, scale);
  compose_gradients(*this, ddown, dup, *ds, *grad, *input, *saved, scale);
  if (!dx) return;
  const MatrixOutput out(*this, dx, dy.dtype);
  matmul(out->view(), grad->view(), w, 1, 0);
  cublas().gemm(*out, *ds, *a, 1, 1);
  out.finish();
}

void CudaBackend::lora_backward(View ddown, View dup, View dy, View x, View down, View up, float scale) {
  if (dy.numel() == 0 || x.numel() == 0 || down.numel() == 0) {
    zero(*this, ddown);
    zero(*this, dup);
    return;
  }
  const MatrixInput grad(*this, dy, dy.dtype), input(*this, x, dy.dtype);
  const DType dtype = dy.dtype;
  // At many rows and a high rank the products are large enough for cuBLASLt's, which then are faster.
  constexpr int64_t kManyRows = 2048, kHighRank = 32;
  const bool large = grad->rows >= kManyRows && down.shape[0] >= kHighRank;
  if (!large && factors_fit(*this, *grad) && factors_fit(*this, *input)) {
    const Factor a(*this, down, up, dtype), b(*this, up, down, dtype);
    const WorkMatrix s(*this, dtype, grad->rows, padded(a->rows)), ds(*this, dtype, grad->rows, padded(a->rows));
    Projection projections[2];
    int count = 0;
    if (dup) projections[count++] = {*s, *input, a->t(), 1};
    if (ddown) projections[count++] = {*ds, *grad, *b, scale};
    project(*this, projections, count);
    return fused_gradients(*this, ddown, dup, *ds, *grad, *input, *s, scale, true);
  }
  const MatrixInput a(*this, down, dtype), b(*this, up, dtype);
  const WorkMatrix s(*this, dtype, grad->rows, a->rows), ds(*this, dtype, grad->rows, a->rows);
  if (dup) cublas().gemm(*s, *input, a->t());
  if (ddown) cublas().gemm(*ds, *grad, *b, scale);
  compose_gradients(*this, ddown, dup, *ds, *grad, *input, *s, scale);
}

}  // namespace wick
