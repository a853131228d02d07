// The LoRA linear (Hu et al., 2021): y = x w^T + bias + residual, and each block of y's columns has its scale * s up^T
// added, with s = dropout(x) down^T.
// M rows, K inputs, N outputs, R rank: x [M, K], w [N, K], y [M, N], down [R, K], up [N, R], s and ds [M, R].
#include <array>
#include <deque>

#include "wick/backend/cuda/linear/lora_factors.h"
#include "wick/backend/cuda/linear/lora_few_rows.h"
#include "wick/backend/cuda/linear/lora_pass_sm90.h"
#include "wick/backend/cuda/linear/lora_product.h"
#include "wick/backend/cuda/runtime/cublaslt.h"

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

// Whether the LoRAs are what the fused kernels are made for: of one rank and scale, side by side on all outputs.
bool side_by_side(const LoraFactors& lora, int64_t outputs) {
  if (lora.dropout.p > 0 || lora.blocks.empty() || lora.blocks.size() > kMostLayers) return false;
  const LoraBlock& first = lora.blocks.front();
  const int64_t rank = first.up.shape[1];
  int64_t row = 0, column = 0;
  for (const LoraBlock& block : lora.blocks) {
    if (block.up.shape[1] != rank || block.scale != first.scale || block.row != row || block.column != column)
      return false;
    row += rank;
    column += block.up.shape[0];
    if (lora.blocks.size() > 1 && (rank % 8 != 0 || column % 8 != 0)) return false;
  }
  return row == lora.down.shape[0] && column == outputs;
}

// dup_g = scale * dy_g^T s_g and ddown_g = ds_g^T x by our own kernels, in one launch; any may be unwanted.
void fused_gradients(CudaBackend& cuda, const View& ddown, const std::vector<View>& dups, const DeviceMatrix& ds,
                     const DeviceMatrix& dy, const DeviceMatrix& x, const DeviceMatrix& s, const LoraFactors& lora,
                     Follows follows) {
  const MatrixOutput grad_down(cuda, ddown, DType::f32);
  std::array<std::optional<MatrixOutput>, kMostLayers> grad_ups;
  std::array<FactorGradient, 2 * kMostLayers> gradients;
  int count = 0;
  for (size_t g = 0; g < lora.blocks.size(); ++g) {
    const LoraBlock& block = lora.blocks[g];
    if (g < dups.size() && dups[g])
      gradients[size_t(count++)] = {*grad_ups[g].emplace(cuda, dups[g], DType::f32), outputs_of(block, dy),
                                    low_of(block, s), block.scale};
    if (ddown) gradients[size_t(count++)] = {low_of(block, grad_down->t()), x, low_of(block, ds), 1};
  }
  if (count > 0) factor_gradients(cuda, gradients.data(), count, follows);
  grad_down.finish();
  for (const auto& grad : grad_ups)
    if (grad) grad->finish();
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

// The ups as the kernels read them; none may lie transposed.
class Ups {
 public:
  Ups(CudaBackend& cuda, const LoraFactors& lora, DType dtype) {
    for (const LoraBlock& block : lora.blocks) factors_.emplace_back(cuda, block.up, dtype);
  }
  bool transposed() const {
    return std::any_of(factors_.begin(), factors_.end(), [](const Factor& f) { return f->transposed; });
  }
  const DeviceMatrix& operator[](size_t g) const { return *factors_[g]; }

 private:
  std::deque<Factor> factors_;  // they stay where they are
};

// Whether blocks can share a long reduction of few columns, through the memory of a cluster; elsewhere cuBLASLt, which
// splits it, is faster.
bool thin_kernels_share(const CudaBackend& cuda) { return cuda.capability() >= 90; }

// The low of an extended product, scale * x down^T; s, if wanted, gets x down^T, and may then be low itself.
DeviceMatrix project_low(CudaBackend& cuda, const WorkMatrix& own, const DeviceMatrix& s, const DeviceMatrix& x,
                         const DeviceMatrix& down, float scale) {
  if (thin_kernels_share(cuda)) {
    const Projection projection{s, x, down.t(), 1, *own, scale};
    project(cuda, &projection, 1);
    return *own;
  }
  const bool is_low = s.data && scale == 1 && rows_aligned(s);
  const DeviceMatrix& low = is_low ? s : *own;
  const DeviceMatrix columns = low.col_range(0, down.rows);
  if (low.cols > down.rows) cuda.fill(low.view(), 0);
  if (!s.data || is_low) {
    cuda.cublas().gemm(columns, x, down.t(), scale);
  } else {
    cuda.cublas().gemm(s, x, down.t());
    cuda.affine(columns.view(), s.view(), scale, 0);
  }
  return low;
}

// y = x w^T + bias + scale * s_g up_g^T + residual in one launch or two, if the shapes fit.
bool fused_forward(CudaBackend& cuda, const View& y, const View& s, const View& x, const View& w, const View& bias,
                   const LoraFactors& lora, const DeviceMatrix& residual) {
  const auto product = as_rows(y), input = as_rows(x), weight = as_matrix(w);
  const auto saved = s ? as_rows(s) : DeviceMatrix{};
  const bool dense_bias = !bias || (bias.dtype == DType::f32 && bias.contiguous());
  if (!product || !input || !weight || !saved || !dense_bias || !factors_fit(cuda, *input)) return false;
  if (s && (s.dtype != x.dtype || saved->transposed)) return false;
  if (residual.data && (residual.transposed || !rows_aligned(residual))) return false;
  ExtendedGemm g{.y = *product, .x = *input, .w = weight->t(), .bias = bias.as<float>(), .residual = residual};
  if (!g.w.transposed || !lora_product_fits(cuda, g)) return false;
  const Factor a(cuda, lora.down, x.dtype);
  const Ups ups(cuda, lora, x.dtype);
  if (a->transposed || ups.transposed()) return false;
  for (size_t i = 0; i < lora.blocks.size(); ++i) {
    const LoraBlock& block = lora.blocks[i];
    g.groups[size_t(g.group_count++)] = {ups[i].t(), block.row, low_of(block, a->t())};
  }
  g.s = *saved;
  g.low_scale = lora.blocks.front().scale;
  const ProductPlan plan = plan_lora_product(cuda, g);
  std::optional<WorkMatrix> low;
  if (!plan.makes_low())
    g.low =
        project_low(cuda, low.emplace(cuda, x.dtype, input->rows, padded(a->rows)), *saved, *input, *a, g.low_scale);
  lora_product(cuda, g, plan);
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
  fused_gradients(cuda, ddown, {dup}, *ds, grad, input, *s, {down, {{up, 0, 0, scale}}, {}}, Follows::projection);
  return true;
}

// Whether one pass over dy, then one over x, is faster: measured on an H100.
bool many_rows(const CudaBackend& cuda, const DeviceMatrix& dy, const DeviceMatrix& x, int64_t rank) {
  constexpr int64_t kManyRows = 2048, kWidest = 12288;
  return dy.rows >= kManyRows && dy.cols <= kWidest && stream_fits(cuda, dy, rank) && stream_fits(cuda, x, rank);
}

// ds = scale * dy up and, with it, the parts of dup, which go to `grad_ups` in the end.
void stream_dy(CudaBackend& cuda, const std::array<Projection, kMostLayers>& projections, const DeviceMatrix& s,
               const LoraFactors& lora, std::array<std::optional<MatrixOutput>, kMostLayers>& grad_ups,
               const std::vector<View>& dups, PartialGradients& gradients) {
  for (size_t g = 0; g < lora.blocks.size(); ++g) {
    const MatrixOutput& out = grad_ups[g].emplace(cuda, dups[g], DType::f32);
    const FactorGradient dup{*out, projections[g].x, low_of(lora.blocks[g], s), lora.blocks[g].scale};
    stream(cuda, &projections[g], dup, gradients, Follows::other);
  }
}

// dx = dy w + ds down, and the factors' gradients, if the shapes fit: in two launches or three, or in five at many
// rows.
bool fused_backward(CudaBackend& cuda, const View& dx, const View& ddown, const std::vector<View>& dups, const View& dy,
                    const View& x, const View& s, const View& w, const LoraFactors& lora) {
  const auto wanted = [](const View& v) { return bool(v); };
  const bool dup = std::any_of(dups.begin(), dups.end(), wanted);
  const bool all = ddown && dups.size() == lora.blocks.size() && std::all_of(dups.begin(), dups.end(), wanted);
  const auto grad = as_rows(dy), weight = as_matrix(w), out = dx ? as_rows(dx) : DeviceMatrix{};
  const auto input = ddown ? as_rows(x) : DeviceMatrix{}, saved = dup ? as_rows(s) : DeviceMatrix{};
  if (!grad || !weight || !out || !input || !saved || !factors_fit(cuda, *grad)) return false;
  if (ddown && (x.dtype != dy.dtype || !factors_fit(cuda, *input))) return false;
  if (dup && (s.dtype != dy.dtype || saved->transposed || !rows_aligned(*saved))) return false;
  ExtendedGemm g{.y = *out, .x = *grad, .w = *weight};
  if (dx && (g.w.transposed || !lora_product_fits(cuda, g))) return false;
  const Factor a(cuda, lora.down, dy.dtype);
  const Ups ups(cuda, lora, dy.dtype);
  if (a->transposed || ups.transposed()) return false;
  const WorkMatrix ds(cuda, dy.dtype, grad->rows, padded(a->rows));
  std::array<Projection, kMostLayers> projections;
  const size_t layers = lora.blocks.size();
  for (size_t i = 0; i < layers; ++i) {
    const LoraBlock& block = lora.blocks[i];
    projections[i] = {layers == 1 ? *ds : low_of(block, *ds), outputs_of(block, *grad), ups[i], block.scale, {}, 1};
  }
  PartialGradients gradients(cuda);
  std::array<std::optional<MatrixOutput>, kMostLayers> grad_ups;
  const bool shared = thin_kernels_share(cuda), streamed = all && many_rows(cuda, *grad, *input, a->rows);
  g.groups[size_t(g.group_count++)] = {*a};
  if (shared && !streamed && layers == 1) g.groups[0].p = ups[0];
  if (ddown) g.s = *ds;
  g.s_scale = g.low_scale = lora.blocks.front().scale;
  g.low = *ds;
  const ProductPlan plan = dx ? plan_lora_product(cuda, g) : ProductPlan{};
  if (streamed)
    stream_dy(cuda, projections, *saved, lora, grad_ups, dups, gradients);
  else if (!shared)
    compose_ds(cuda, *ds, *grad, lora);
  else if (!plan.makes_low())
    project(cuda, projections.data(), int(layers));
  if (dx) lora_product(cuda, g, plan);
  // Behind a product that did not make ds they need not wait for it: they fill the multiprocessors that it leaves idle.
  const Follows follows = dx && !plan.makes_low() ? Follows::product : Follows::projection;
  if (streamed) {
    const MatrixOutput grad_down(cuda, ddown, DType::f32);
    stream(cuda, nullptr, {grad_down->t(), *input, *ds, 1}, gradients, follows);
    gradients.finish();
    grad_down.finish();
    for (size_t i = 0; i < layers; ++i) grad_ups[i]->finish();
  } else if (shared) {
    fused_gradients(cuda, ddown, dups, *ds, *grad, *input, *saved, lora, follows);
  } else {
    compose_gradients(cuda, ddown, dups, (*ds).col_range(0, a->rows), *grad, *input, *saved, lora);
  }
  return true;
}

}  // namespace

void CudaBackend::lora_linear(const LoraArgs& a) {
  if (a.x.numel() == 0 || a.lora.down.numel() == 0 || a.y.numel() == 0) {
    zero(*this, a.s);
    if (a.w) linear(a.y, a.x, a.w, a.bias, a.residual);
    return;
  }
  if (a.w && is_block(a.w.dtype)) {
    linear(a.y, a.x, a.w, a.bias, a.residual);
    return lora_linear({.y = a.y, .s = a.s, .x = a.x, .lora = a.lora});
  }
  const MatrixInput start(*this, a.residual, a.x.dtype);
  if (side_by_side(a.lora, a.y.dim(-1))) {
    const LoraBlock& first = a.lora.blocks.front();
    if (a.w && fused_forward(*this, a.y, a.s, a.x, a.w, a.bias, a.lora, *start)) return;
    if (!a.w && a.lora.blocks.size() == 1 && fused_adapter(*this, a.y, a.s, a.x, a.lora.down, first.up, first.scale))
      return;
  }
  const MatrixInput input(*this, a.x, a.x.dtype), down(*this, a.lora.down, a.x.dtype);
  const MatrixOutput product(*this, a.y, a.x.dtype), saved(*this, a.s, a.x.dtype);
  std::optional<WorkMatrix> own;
  const DeviceMatrix& low = a.s ? *saved : *own.emplace(*this, a.x.dtype, input->rows, down->rows);
  cublas().gemm(low, *DroppedInput(*this, *input, a.lora.dropout), down->t());
  if (a.w)
    linear(product->view(), input->view(), a.w, a.bias, a.residual ? start->view() : View());
  else
    product.load();
  for (const LoraBlock& block : a.lora.blocks) {
    const MatrixInput up(*this, block.up, a.x.dtype);
    cublas().gemm(outputs_of(block, *product), low_of(block, low), up->t(), block.scale, 1);
  }
  saved.finish();
  product.finish();
}

void CudaBackend::lora_linear_backward(const LoraArgs& a, const LoraGradients& g) {
  if (g.dy.numel() == 0 || a.x.numel() == 0 || a.lora.down.numel() == 0) {
    zero_all(*this, g.ddown, g.dups);
    if (g.dx && a.w && g.dx.numel() > 0) matmul(g.dx, g.dy, a.w, 1, 0);
    return;
  }
  if (a.w && is_block(a.w.dtype)) {
    if (g.dx) matmul(g.dx, g.dy, a.w, 1, 0);
    return lora_linear_backward({.s = a.s, .x = a.x, .lora = a.lora}, g);
  }
  if (a.w && side_by_side(a.lora, a.w.shape[0]) &&
      fused_backward(*this, g.dx, g.ddown, g.dups, g.dy, a.x, a.s, a.w, a.lora))
    return;
  const MatrixInput grad(*this, g.dy, g.dy.dtype), down(*this, g.dx ? a.lora.down : View(), g.dy.dtype),
      input(*this, g.ddown ? a.x : View(), g.dy.dtype), saved(*this, g.dups.empty() ? View() : a.s, g.dy.dtype);
  const WorkMatrix ds(*this, g.dy.dtype, grad->rows, a.lora.down.shape[0]);
  if (g.dx || g.ddown) compose_ds(*this, *ds, *grad, a.lora);
  compose_gradients(*this, g.ddown, g.dups, *ds, *grad, *DroppedInput(*this, *input, a.lora.dropout), *saved, a.lora);
  if (!g.dx) return;
  const MatrixOutput out(*this, g.dx, g.dy.dtype);
  if (a.w)
    matmul(out->view(), grad->view(), a.w, 1, 0);
  else
    out.load();
  if (a.lora.dropout.p > 0) {
    const WorkMatrix low(*this, g.dy.dtype, out->rows, out->cols);
    cublas().gemm(*low, *ds, *down);
    dropout(out->view(), (*low).view(), a.lora.dropout, true);
  } else {
    cublas().gemm(*out, *ds, *down, 1, 1);
  }
  out.finish();
}

void CudaBackend::lora_backward(const LoraArgs& a, const LoraGradients& g) {
  if (g.dy.numel() == 0 || a.x.numel() == 0 || a.lora.down.numel() == 0) return zero_all(*this, g.ddown, g.dups);
  if (!g.ddown && g.dups.empty()) return;
  const DType dtype = g.dy.dtype;
  const MatrixInput grad(*this, g.dy, dtype), input(*this, a.x, dtype);
  if (a.lora.blocks.size() == 1 && side_by_side(a.lora, grad->cols)) {
    const LoraBlock& block = a.lora.blocks.front();
    const View dup = g.dups.empty() ? View() : g.dups.front();
    if (fused_adapter_gradients(*this, g.ddown, dup, *grad, *input, a.lora.down, block.up, block.scale)) return;
  }
  const MatrixInput down(*this, a.lora.down, dtype);
  const DroppedInput dropped(*this, *input, a.lora.dropout);
  const WorkMatrix s(*this, dtype, grad->rows, down->rows), ds(*this, dtype, grad->rows, down->rows);
  if (!g.dups.empty()) cublas().gemm(*s, *dropped, down->t());
  if (g.ddown) compose_ds(*this, *ds, *grad, a.lora);
  compose_gradients(*this, g.ddown, g.dups, *ds, *grad, *dropped, *s, a.lora);
}

}  // namespace wick
