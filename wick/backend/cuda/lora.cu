// The LoRA linear (Hu et al., 2021): y = x w^T + bias, and each block of y's columns has its scale * s up^T added, with
// s = dropout(x) down^T.
// M rows, K inputs, N outputs, R rank: x [M, K], w [N, K], y [M, N], down [R, K], up [N, R], s and ds [M, R].
#include "wick/backend/cuda/cublaslt.h"
#include "wick/backend/cuda/lora_factors.h"
#include "wick/backend/cuda/lora_few_rows.h"
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

void zero_all(CudaBackend& cuda, const View& ddown, const std::vector<View>& dups) {
  zero(cuda, ddown);
  for (const View& dup : dups) zero(cuda, dup);
}

// dropout(x) to read: x itself where nothing is dropped.
class DroppedInput {
 public:
  DroppedInput(CudaBackend& cuda, const DeviceMatrix& x, const Dropout& dropout) : matrix_(x) {
    if (dropout.p == 0 || !x.data) return;
    matrix_ = *copy_.emplace(cuda, x.dtype, x.rows, x.cols);
    cuda.dropout(matrix_.view(), x.view(), dropout, false);
  }
  const DeviceMatrix& operator*() const { return matrix_; }

 private:
  std::optional<WorkMatrix> copy_;
  DeviceMatrix matrix_;
};

// A block's columns of y and of s.
DeviceMatrix outputs_of(const LoraBlock& block, const DeviceMatrix& y) {
  return y.col_range(block.column, block.up.shape[0]);
}
DeviceMatrix low_of(const LoraBlock& block, const DeviceMatrix& s) { return s.col_range(block.row, block.up.shape[1]); }

// ds_g = scale_g * dy_g up_g, and zero where down only pads.
void compose_ds(CudaBackend& cuda, const DeviceMatrix& ds, const DeviceMatrix& dy, const LoraFactors& lora) {
  int64_t rank = 0;
  for (const LoraBlock& block : lora.blocks) rank += block.up.shape[1];
  if (rank < ds.cols) cuda.fill(ds.view(), 0);
  for (const LoraBlock& block : lora.blocks) {
    const MatrixInput up(cuda, block.up, dy.dtype);
    cuda.cublas().gemm(low_of(block, ds), outputs_of(block, dy), *up, block.scale);
  }
}

// dup_g = scale_g * dy_g^T s_g and ddown = ds^T x; any may be unwanted. x has had its dropout.
void compose_gradients(CudaBackend& cuda, const View& ddown, const std::vector<View>& dups, const DeviceMatrix& ds,
                       const DeviceMatrix& dy, const DeviceMatrix& x, const DeviceMatrix& s, const LoraFactors& lora) {
  for (size_t g = 0; g < dups.size(); ++g) {
    if (!dups[g]) continue;
    const LoraBlock& block = lora.blocks[g];
    const MatrixOutput grad(cuda, dups[g], DType::f32);
    cuda.cublas().gemm(*grad, outputs_of(block, dy).t(), low_of(block, s), block.scale);
    grad.finish();
  }
  if (!ddown) return;
  const MatrixOutput grad(cuda, ddown, DType::f32);
  cuda.cublas().gemm(*grad, ds.t(), x);
  grad.finish();
}

// One LoRA on all outputs and nothing else, which is what the fused kernels are made for.
bool one_block(const LoraFactors& lora, int64_t outputs) {
  if (lora.blocks.size() != 1 || lora.dropout.p > 0) return false;
  const LoraBlock& block = lora.blocks.front();
  return block.up.shape[0] == outputs && block.up.shape[1] == lora.down.shape[0];
}

// dup = scale * dy^T s and ddown = ds^T x by our own kernels, in one launch; either may be unwanted.
void fused_gradients(CudaBackend& cuda, const View& ddown, const View& dup, const DeviceMatrix& ds,
                     const DeviceMatrix& dy, const DeviceMatrix& x, const DeviceMatrix& s, float scale,
                     Follows follows) {
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

bool lies_ready(const View& factor, DType dtype) {
  const auto matrix = as_matrix(factor);
  return matrix && factor.dtype == dtype && rows_aligned(*matrix);
}

// In which dtype the thin kernels read both factors: f32 where both lie ready in it, else that of the activations.
DType factors_dtype(const View& down, const View& up, DType activations) {
  return lies_ready(down, DType::f32) && lies_ready(up, DType::f32) ? DType::f32 : activations;
}

// A factor in a dtype, with 16-byte aligned rows: itself, or a copy.
class Factor {
 public:
  Factor(CudaBackend& cuda, const View& factor, DType dtype) {
    if (lies_ready(factor, dtype)) {
      matrix_ = *as_matrix(factor);
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

// y = x w^T + bias + scale * s up^T in two launches, if the shapes fit.
bool fused_forward(CudaBackend& cuda, const View& y, const View& s, const View& x, const View& w, const View& bias,
                   const View& down, const View& up, float scale) {
  const auto product = as_rows(y), input = as_rows(x), weight = as_matrix(w);
  const auto saved = s ? as_rows(s) : DeviceMatrix{};
  const bool dense_bias = !bias || (bias.dtype == DType::f32 && bias.contiguous());
  if (!product || !input || !weight || !saved || !dense_bias || !factors_fit(cuda, *input)) return false;
  if (s && (s.dtype != x.dtype || saved->transposed)) return false;
  ExtendedGemm g{*product, *input, weight->t(), {}, {}, bias.as<float>()};
  if (!g.w.transposed || !extended_gemm_fits(cuda, g)) return false;
  const Factor a(cuda, down, x.dtype), b(cuda, up, x.dtype);
  if (a->transposed || b->transposed) return false;
  const WorkMatrix low(cuda, x.dtype, input->rows, padded(a->rows));
  const Projection projection{*saved, *input, a->t(), 1, *low, scale};
  project(cuda, &projection, 1);
  g.low = *low;
  g.f = b->t();
  extended_gemm(cuda, g, true);
  return true;
}

// y += scale * s up^T in one launch, if the shapes fit.
bool fused_adapter(CudaBackend& cuda, const View& y, const View& s, const View& x, const View& down, const View& up,
                   float scale) {
  const auto product = as_rows(y), input = as_rows(x);
  const auto saved = s ? as_rows(s) : DeviceMatrix{};
  if (!product || !input || !saved || y.dtype != x.dtype || !factors_fit(cuda, *input)) return false;
  if (s && (s.dtype != x.dtype || saved->transposed)) return false;
  const DType dtype = factors_dtype(down, up, x.dtype);
  AdapterProduct p{*product, *input, {}, {}, *saved, scale};
  if (!few_rows_fit(cuda, p, down.shape[0])) return false;
  const Factor a(cuda, down, dtype), b(cuda, up, dtype);
  if (b->transposed) return false;
  p.down = *a;
  p.up = *b;
  few_rows_product(cuda, p);
  return true;
}

// The adapter's gradients from x and dy, in one launch at few rows and in two at more, if the shapes fit.
bool fused_adapter_gradients(CudaBackend& cuda, const View& ddown, const View& dup, const DeviceMatrix& grad,
                             const DeviceMatrix& input, const View& down, const View& up, float scale) {
  // At many rows and a high rank the products are large enough for cuBLASLt's, which then are faster.
  constexpr int64_t kManyRows = 2048, kHighRank = 32;
  if (!ddown && !dup) return true;
  if (!factors_fit(cuda, grad) || !factors_fit(cuda, input)) return false;
  if (grad.rows >= kManyRows && down.shape[0] >= kHighRank) return false;
  const DType dtype = factors_dtype(down, up, grad.dtype);
  const Factor a(cuda, down, dtype), b(cuda, up, dtype);
  if (few_rows_fit(cuda, grad.rows, a->rows)) {
    const MatrixOutput grad_down(cuda, ddown, DType::f32), grad_up(cuda, dup, DType::f32);
    few_rows_gradients(cuda, {*grad_down, *grad_up, grad, input, *a, *b, scale});
    grad_down.finish();
    grad_up.finish();
    return true;
  }
  const WorkMatrix s(cuda, grad.dtype, grad.rows, padded(a->rows)), ds(cuda, grad.dtype, grad.rows, padded(a->rows));
  Projection projections[2];
  int count = 0;
  if (dup) projections[count++] = {*s, input, a->t(), 1, {}, 1};
  if (ddown) projections[count++] = {*ds, grad, *b, scale, {}, 1};
  project(cuda, projections, count);
  fused_gradients(cuda, ddown, dup, *ds, grad, input, *s, scale, Follows::projection);
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
  ExtendedGemm g{*out, *grad, *weight, {}, {}, nullptr};
  if (dx && (g.w.transposed || !extended_gemm_fits(cuda, g))) return false;
  const Factor a(cuda, down, dy.dtype), b(cuda, up, dy.dtype);
  if (a->transposed || b->transposed) return false;
  const WorkMatrix ds(cuda, dy.dtype, grad->rows, padded(a->rows));
  const Projection projection{*ds, *grad, *b, scale, {}, 1};
  project(cuda, &projection, 1);
  if (dx) {
    g.low = *ds;
    g.f = *a;
    extended_gemm(cuda, g, true);
  }
  // Behind the product, for which they need not wait, they fill the multiprocessors that it leaves idle.
  fused_gradients(cuda, ddown, dup, *ds, *grad, *input, *saved, scale, dx ? Follows::product : Follows::projection);
  return true;
}

}  // namespace

void CudaBackend::lora_linear(View y, View s, View x, View w, View bias, const LoraFactors& lora) {
  if (x.numel() == 0 || lora.down.numel() == 0 || y.numel() == 0) {
    zero(*this, s);
    if (w) linear(y, x, w, bias);
    return;
  }
  if (one_block(lora, y.dim(-1))) {
    const LoraBlock& block = lora.blocks.front();
    if (w ? fused_forward(*this, y, s, x, w, bias, lora.down, block.up, block.scale)
          : fused_adapter(*this, y, s, x, lora.down, block.up, block.scale))
      return;
  }
  const MatrixInput input(*this, x, x.dtype), a(*this, lora.down, x.dtype);
  const MatrixOutput product(*this, y, x.dtype), saved(*this, s, x.dtype);
  std::optional<WorkMatrix> own;
  const DeviceMatrix& low = s ? *saved : *own.emplace(*this, x.dtype, input->rows, a->rows);
  cublas().gemm(low, *DroppedInput(*this, *input, lora.dropout), a->t());
  if (w)
    linear(product->view(), input->view(), w, bias);
  else
    product.load();
  for (const LoraBlock& block : lora.blocks) {
    const MatrixInput up(*this, block.up, x.dtype);
    cublas().gemm(outputs_of(block, *product), low_of(block, low), up->t(), block.scale, 1);
  }
  saved.finish();
  product.finish();
}

void CudaBackend::lora_linear_backward(View dx, View ddown, const std::vector<View>& dups, View dy, View x, View s,
                                       View w, const LoraFactors& lora) {
  if (dy.numel() == 0 || x.numel() == 0 || lora.down.numel() == 0) {
    zero_all(*this, ddown, dups);
    if (dx && w && dx.numel() > 0) matmul(dx, dy, w, 1, 0);
    return;
  }
  const View dup = dups.empty() ? View() : dups.front();
  if (w && one_block(lora, w.shape[0])) {
    const LoraBlock& block = lora.blocks.front();
    if (fused_backward(*this, dx, ddown, dup, dy, x, s, w, lora.down, block.up, block.scale)) return;
  }
  const MatrixInput grad(*this, dy, dy.dtype), a(*this, dx ? lora.down : View(), dy.dtype),
      input(*this, ddown ? x : View(), dy.dtype), saved(*this, dups.empty() ? View() : s, dy.dtype);
  const WorkMatrix ds(*this, dy.dtype, grad->rows, lora.down.shape[0]);
  if (dx || ddown) compose_ds(*this, *ds, *grad, lora);
  compose_gradients(*this, ddown, dups, *ds, *grad, *DroppedInput(*this, *input, lora.dropout), *saved, lora);
  if (!dx) return;
  const MatrixOutput out(*this, dx, dy.dtype);
  if (w)
    matmul(out->view(), grad->view(), w, 1, 0);
  else
    out.load();
  if (lora.dropout.p > 0) {
    const WorkMatrix low(*this, dy.dtype, out->rows, out->cols);
    cublas().gemm(*low, *ds, *a);
    dropout(out->view(), (*low).view(), lora.dropout, true);
  } else {
    cublas().gemm(*out, *ds, *a, 1, 1);
  }
  out.finish();
}

void CudaBackend::lora_backward(View ddown, const std::vector<View>& dups, View dy, View x, const LoraFactors& lora) {
  if (dy.numel() == 0 || x.numel() == 0 || lora.down.numel() == 0) return zero_all(*this, ddown, dups);
  if (!ddown && dups.empty()) return;
  const DType dtype = dy.dtype;
  const MatrixInput grad(*this, dy, dtype), input(*this, x, dtype);
  if (one_block(lora, grad->cols)) {
    const LoraBlock& block = lora.blocks.front();
    const View dup = dups.empty() ? View() : dups.front();
    if (fused_adapter_gradients(*this, ddown, dup, *grad, *input, lora.down, block.up, block.scale)) return;
  }
  const MatrixInput a(*this, lora.down, dtype);
  const DroppedInput dropped(*this, *input, lora.dropout);
  const WorkMatrix s(*this, dtype, grad->rows, a->rows), ds(*this, dtype, grad->rows, a->rows);
  if (!dups.empty()) cublas().gemm(*s, *dropped, a->t());
  if (ddown) compose_ds(*this, *ds, *grad, lora);
  compose_gradients(*this, ddown, dups, *ds, *grad, *dropped, *s, lora);
}

}  // namespace wick
