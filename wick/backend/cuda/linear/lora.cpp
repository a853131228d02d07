// The LoRA linear (Hu et al., 2021): y = x w^T + bias + residual, and each block of y's columns has its scale * s up^T
// added, with s = dropout(x) down^T.
// M rows, K inputs, N outputs, R rank: x [M, K], w [N, K], y [M, N], down [R, K], up [N, R], s and ds [M, R].
#include "wick/backend/cuda/linear/few_rows.h"

#include <fmt/format.h>

#include <deque>

#include "wick/backend/cuda/linear/lora_products.h"
#include "wick/backend/cuda/linear/plan.h"
#include "wick/backend/cuda/runtime/cublaslt.h"
#include "wick/backend/cuda/runtime/ways.h"

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

void zero(CudaBackend& cuda, const View& v, const std::vector<View>& more = {}) {
  if (v && v.numel() > 0) cuda.fill(v, 0);
  for (const View& other : more) zero(cuda, other);
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

// The factors' gradients in f32; any may be unwanted.
struct GradientOutputs {
  MatrixOutput down;
  std::deque<MatrixOutput> ups;  // they stay where they are

  GradientOutputs(CudaBackend& cuda, const LoraGradients& g) : down(cuda, g.ddown, DType::f32) {
    for (const View& dup : g.dups) ups.emplace_back(cuda, dup, DType::f32);
  }
  void finish() const {
    down.finish();
    for (const MatrixOutput& up : ups) up.finish();
  }
};

// dup_g = scale_g * dy_g^T s_g
FactorGradient up_gradient(const DeviceMatrix& dup, const LoraBlock& block, const DeviceMatrix& dy,
                           const DeviceMatrix& s) {
  return {dup, outputs_of(block, dy), low_of(block, s), block.scale};
}

// Those of the ups, and ddown = ds^T x. x has had its dropout.
void compose_gradients(CudaBackend& cuda, const GradientOutputs& out, const DeviceMatrix& ds, const DeviceMatrix& dy,
                       const DeviceMatrix& x, const DeviceMatrix& s, const LoraFactors& lora) {
  for (size_t g = 0; g < out.ups.size(); ++g) {
    if (!out.ups[g]->data) continue;
    const FactorGradient up = up_gradient(*out.ups[g], lora.blocks[g], dy, s);
    cuda.cublas().gemm(up.out, up.x.t(), up.s, up.scale);
  }
  if (out.down->data) cuda.cublas().gemm(*out.down, ds.t(), x);
  out.finish();
}

// The same by our own kernels, in one launch.
void fused_gradients(CudaBackend& cuda, const GradientOutputs& out, const DeviceMatrix& ds, const DeviceMatrix& dy,
                     const DeviceMatrix& x, const DeviceMatrix& s, const LoraFactors& lora, Follows follows) {
  std::vector<FactorGradient> gradients;
  for (size_t g = 0; g < lora.blocks.size(); ++g) {
    const LoraBlock& block = lora.blocks[g];
    if (g < out.ups.size() && out.ups[g]->data) gradients.push_back(up_gradient(*out.ups[g], block, dy, s));
    if (out.down->data) gradients.push_back({low_of(block, out.down->t()), x, low_of(block, ds), 1});
  }
  if (!gradients.empty()) factor_gradients(cuda, gradients, follows);
  out.finish();
}

// A factor, or s, in a dtype and with 16-byte aligned rows: itself, or a copy.
class Factor {
 public:
  Factor(CudaBackend& cuda, const View& factor, DType dtype) : matrix_(factor_layout(factor, dtype)) {
    if (lies_ready(factor, dtype)) return;
    const DeviceMatrix whole = *copy_.emplace(cuda, dtype, matrix_.rows, matrix_.ld);
    matrix_.data = whole.data;
    if (matrix_.ld != matrix_.cols) cuda.fill(whole.view(), 0);
    cuda.copy(matrix_.view(), factor);
  }
  const DeviceMatrix& operator*() const { return matrix_; }
  const DeviceMatrix* operator->() const { return &matrix_; }

 private:
  std::optional<WorkMatrix> copy_;
  DeviceMatrix matrix_;
};

// The ups as the kernels read them; they stay where they are.
std::deque<Factor> ups_of(CudaBackend& cuda, const LoraFactors& lora, DType dtype) {
  std::deque<Factor> ups;
  for (const LoraBlock& block : lora.blocks) ups.emplace_back(cuda, block.up, dtype);
  return ups;
}

// The low of an extended product, scale * x down^T; s, if wanted, gets x down^T, and may then be low itself.
DeviceMatrix make_low(CudaBackend& cuda, LowWay way, const WorkMatrix& own, const DeviceMatrix& s,
                      const DeviceMatrix& x, const DeviceMatrix& down, float scale) {
  if (way == LowWay::projection) {
    const Projection projection{s, x, down.t(), 1, *own, scale};
    project(cuda, {&projection, 1});
    return *own;
  }
  const bool is_low = s.data && scale == 1 && lies_ready(s.view(), s.dtype);
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

// y = x w^T + bias + scale * s_g up_g^T + residual, by the extended product, behind the kernel that computes s.
void fused_forward(CudaBackend& cuda, const LoraArgs& a, const LoraPlan& plan) {
  ExtendedGemm g = *forward_product(cuda, a);
  const MatrixInput start(cuda, a.residual, a.x.dtype);
  const Factor down(cuda, a.lora.down, a.x.dtype);
  const std::deque<Factor> ups = ups_of(cuda, a.lora, a.x.dtype);
  for (size_t i = 0; i < a.lora.blocks.size(); ++i)
    g.groups[i] = {ups[i]->t(), a.lora.blocks[i].column, a.lora.blocks[i].row, low_of(a.lora.blocks[i], down->t())};
  g.residual = *start;
  std::optional<WorkMatrix> low;
  if (plan.low != LowWay::product)
    g.low = make_low(cuda, plan.low, low.emplace(cuda, a.x.dtype, g.x.rows, padded(down->rows)), g.s, g.x, *down,
                     g.low_scale);
  extended_gemm(cuda, g, plan.product);
}

// y += scale * s up^T in one launch.
void adapter_alone(CudaBackend& cuda, const LoraArgs& a) {
  const LoraBlock& block = a.lora.blocks.front();
  const DType dtype = factors_dtype(a.lora.down, block.up, a.x.dtype);
  const Factor down(cuda, a.lora.down, dtype), up(cuda, block.up, dtype);
  few_rows_product(cuda, {*as_rows(a.y), *as_rows(a.x), *down, *up, a.s ? *as_rows(a.s) : DeviceMatrix{}, block.scale});
}

// s, then y, then what each block adds to it.
void composed_forward(CudaBackend& cuda, const LoraArgs& a) {
  const MatrixInput start(cuda, a.residual, a.x.dtype), input(cuda, a.x, a.x.dtype), down(cuda, a.lora.down, a.x.dtype);
  const MatrixOutput product(cuda, a.y, a.x.dtype), saved(cuda, a.s, a.x.dtype);
  std::optional<WorkMatrix> own;
  const DeviceMatrix& low = a.s ? *saved : *own.emplace(cuda, a.x.dtype, input->rows, down->rows);
  cuda.cublas().gemm(low, *DroppedInput(cuda, *input, a.lora.dropout), down->t());
  if (a.w)
    cuda.linear(product->view(), input->view(), a.w, a.bias, a.residual ? start->view() : View());
  else
    product.load();
  for (const LoraBlock& block : a.lora.blocks) {
    const MatrixInput up(cuda, block.up, a.x.dtype);
    cuda.cublas().gemm(outputs_of(block, *product), low_of(block, low), up->t(), block.scale, 1);
  }
  saved.finish();
  product.finish();
}

// The gradients of an adapter alone from x and dy, in one launch or in two.
void fused_gradients_alone(CudaBackend& cuda, const LoraArgs& a, const LoraGradients& g, const DeviceMatrix& grad,
                           const DeviceMatrix& input, GradientsWay way) {
  const LoraBlock& block = a.lora.blocks.front();
  const DType dtype = factors_dtype(a.lora.down, block.up, grad.dtype);
  const Factor down(cuda, a.lora.down, dtype), up(cuda, block.up, dtype);
  const GradientOutputs out(cuda, g);
  const DeviceMatrix dup = out.ups.empty() ? DeviceMatrix{} : *out.ups.front();
  if (way == GradientsWay::one_launch &&
      few_rows_gradients(cuda, {*out.down, dup, grad, input, *down, *up, block.scale}))
    return out.finish();
  const int64_t rank = padded(down->rows);
  const WorkMatrix s(cuda, grad.dtype, grad.rows, rank), ds(cuda, grad.dtype, grad.rows, rank);
  std::vector<Projection> projections;
  if (dup.data) projections.push_back({*s, input, down->t()});
  if (g.ddown) projections.push_back({*ds, grad, *up, block.scale});
  project(cuda, projections);
  fused_gradients(cuda, out, *ds, grad, input, *s, a.lora, Follows::projection);
}

// dx = dy w + ds down, and the factors' gradients: in two launches or three, or in five at many rows.
void fused_backward(CudaBackend& cuda, const LoraArgs& a, const LoraGradients& g, const LoraBackwardPlan& plan) {
  const std::vector<LoraBlock>& blocks = a.lora.blocks;
  ExtendedGemm product = *backward_product(cuda, a, g);
  const DeviceMatrix& dy = product.x;
  const DeviceMatrix x = g.ddown ? *as_rows(a.x) : DeviceMatrix{};
  const Factor down(cuda, a.lora.down, dy.dtype);
  std::optional<Factor> saved;  // of a rank that is no multiple of 8 with padded rows
  const DeviceMatrix s = any_wanted(g.dups) ? *saved.emplace(cuda, as_rows(a.s)->view(), dy.dtype) : DeviceMatrix{};
  const std::deque<Factor> ups = ups_of(cuda, a.lora, dy.dtype);
  const WorkMatrix ds(cuda, dy.dtype, dy.rows, padded(down->rows));
  const GradientOutputs out(cuda, g);
  PartialGradients passes(cuda);

  std::vector<Projection> projections;  // a block's ds = scale * dy up
  for (size_t i = 0; i < blocks.size(); ++i) {
    const DeviceMatrix low = blocks.size() == 1 ? *ds : low_of(blocks[i], *ds);
    projections.push_back({low, outputs_of(blocks[i], dy), *ups[i], blocks[i].scale});
  }
  if (plan.ds == LowWay::cublaslt) compose_ds(cuda, *ds, dy, a.lora);
  if (plan.ds == LowWay::projection) project(cuda, projections);
  for (size_t i = 0; i < blocks.size() && plan.ds == LowWay::pass; ++i)
    stream(cuda, &projections[i], up_gradient(*out.ups[i], blocks[i], dy, s), passes, Follows::other);

  if (g.dx) {
    product.groups[0] = {.f = *down, .p = plan.ds == LowWay::product ? *ups[0] : DeviceMatrix{}};
    if (g.ddown) product.s = *ds;
    product.low = *ds;
    extended_gemm(cuda, product, plan.dx);
  }

  // Behind a product that did not make ds they need not wait for it: they fill the SMs that it leaves idle.
  const Follows follows = g.dx && plan.ds != LowWay::product ? Follows::product : Follows::projection;
  if (plan.gradients == GradientsWay::kernel) fused_gradients(cuda, out, *ds, dy, x, s, a.lora, follows);
  if (plan.gradients == GradientsWay::cublaslt)
    compose_gradients(cuda, out, (*ds).col_range(0, down->rows), dy, x, s, a.lora);
  if (plan.gradients != GradientsWay::pass) return;
  stream(cuda, nullptr, {out.down->t(), x, *ds, 1}, passes, follows);
  passes.finish();
  out.finish();
}

void composed_backward(CudaBackend& cuda, const LoraArgs& a, const LoraGradients& g) {
  const DType dtype = g.dy.dtype;
  const MatrixInput grad(cuda, g.dy, dtype), down(cuda, g.dx ? a.lora.down : View(), dtype),
      input(cuda, g.ddown ? a.x : View(), dtype), saved(cuda, g.dups.empty() ? View() : a.s, dtype);
  const WorkMatrix ds(cuda, dtype, grad->rows, a.lora.down.shape[0]);
  if (g.dx || g.ddown) compose_ds(cuda, *ds, *grad, a.lora);
  compose_gradients(cuda, GradientOutputs(cuda, g), *ds, *grad, *DroppedInput(cuda, *input, a.lora.dropout), *saved,
                    a.lora);
  if (!g.dx) return;
  const MatrixOutput out(cuda, g.dx, dtype);
  if (a.w)
    cuda.matmul(out->view(), grad->view(), a.w, 1, 0);
  else
    out.load();
  if (a.lora.dropout.p > 0) {
    const WorkMatrix low(cuda, dtype, out->rows, out->cols);
    cuda.cublas().gemm(*low, *ds, *down);
    cuda.dropout(out->view(), (*low).view(), a.lora.dropout, true);
  } else {
    cuda.cublas().gemm(*out, *ds, *down, 1, 1);
  }
  out.finish();
}

// "LoRA 1 x 4096 -> 6144, q4_0, rank 48 in 3 blocks, bf16"
std::string told(const char* pass, const View& y, const LoraArgs& a) {
  const int64_t rows = a.x.numel() / a.x.shape.back(), columns = y.shape.back();
  return fmt::format("{} {} x {} -> {}, {}, rank {} in {} blocks, {}", pass, rows, a.x.shape.back(), columns,
                     a.w ? name_of(a.w.dtype) : "no weight", a.lora.down.shape[0], a.lora.blocks.size(),
                     name_of(a.x.dtype));
}

}  // namespace

bool lora_few_rows(CudaBackend& cuda, const LoraArgs& a, bool gated) {
  LoraFactors factors;
  std::optional<LinearCall> call = few_rows_call(cuda, a, factors, gated);
  if (!call) return false;
  if (gated && explains()) explain(told("gated LoRA", a.y, a), "few_rows");
  std::optional<Factor> down;
  std::deque<Factor> ups;
  if (call->lora == &factors) {
    factors.down = (*down.emplace(cuda, a.lora.down, a.x.dtype)).view();
    ups = ups_of(cuda, a.lora, a.x.dtype);
    for (size_t g = 0; g < ups.size(); ++g) factors.blocks[g].up = ups[g]->view();
  }
  const MatrixOutput saved(cuda, a.s, a.x.dtype);
  const bool direct = a.s && !saved->transposed && saved->ld % 4 == 0 && uintptr_t(saved->data) % 8 == 0;
  const int64_t rank = a.lora.down.shape[0];
  std::optional<WorkMatrix> own;
  call->s = direct ? *saved : (*own.emplace(cuda, a.x.dtype, call->x.rows, padded(rank))).col_range(0, rank);
  few_rows_linear(cuda, *call);
  if (a.s && !direct) cuda.copy(saved->view(), call->s.view());
  saved.finish();
  return true;
}

namespace {

// Codes that are decoded ahead of a product; those of fp8_product are multiplied as they are.
bool is_decoded_whole(const View& w) { return has_row_format(w.dtype) && w.dtype != DType::fp8_product; }

LoraArgs with_weight(LoraArgs a, const View& w) {
  a.w = w;
  return a;
}

}  // namespace

void CudaBackend::lora_linear(const LoraArgs& a) {
  if (a.x.numel() == 0 || a.lora.down.numel() == 0 || a.y.numel() == 0) {
    zero(*this, a.s);
    if (a.w) linear(a.y, a.x, a.w, a.bias, a.residual);
    return;
  }
  const LoraPlan plan = plan_lora(*this, a);
  if (explains()) explain(told("LoRA", a.y, a), to_string(plan));
  if (plan.is_fused) return fused_forward(*this, a, plan);
  switch (plan.way) {
    case LoraWay::few_rows:
      lora_few_rows(*this, a);
      return;
    case LoraWay::in_blocks:
      return lora_linear(with_weight(a, decoded(a.w, a.x.dtype)));
    case LoraWay::adapter:
      return adapter_alone(*this, a);
    default:
      return composed_forward(*this, a);
  }
}

void CudaBackend::lora_linear_backward(const LoraArgs& a, const LoraGradients& g) {
  if (g.dy.numel() == 0 || a.x.numel() == 0 || a.lora.down.numel() == 0) {
    zero(*this, g.ddown, g.dups);
    if (g.dx && a.w && g.dx.numel() > 0) matmul(g.dx, g.dy, a.w, 1, 0);
    return;
  }
  if (a.w && (is_decoded_whole(a.w) || is_block(a.w.dtype))) {
    const Tensor w = g.dx ? decoded(a.w, g.dy.dtype) : Tensor();
    return lora_linear_backward(with_weight(a, w), g);
  }
  const LoraBackwardPlan plan = a.w ? plan_lora_backward(*this, a, g) : LoraBackwardPlan{};
  if (explains()) explain(told("LoRA backward", g.dy, a), to_string(plan));
  if (plan.is_fused)
    fused_backward(*this, a, g, plan);
  else
    composed_backward(*this, a, g);
}

void CudaBackend::lora_backward(const LoraArgs& a, const LoraGradients& g) {
  if (g.dy.numel() == 0 || a.x.numel() == 0 || a.lora.down.numel() == 0) return zero(*this, g.ddown, g.dups);
  if (!g.ddown && g.dups.empty()) return;
  const DType dtype = g.dy.dtype;
  const MatrixInput grad(*this, g.dy, dtype), input(*this, a.x, dtype);
  const GradientsWay way = plan_lora_gradients(*this, a, g);
  if (explains()) explain(told("LoRA gradients", g.dy, a), std::string(to_string(way)));
  if (way == GradientsWay::none) return;
  if (way != GradientsWay::cublaslt) return fused_gradients_alone(*this, a, g, *grad, *input, way);
  const MatrixInput down(*this, a.lora.down, dtype);
  const DroppedInput dropped(*this, *input, a.lora.dropout);
  const WorkMatrix s(*this, dtype, grad->rows, down->rows), ds(*this, dtype, grad->rows, down->rows);
  if (!g.dups.empty()) cublas().gemm(*s, *dropped, down->t());
  if (g.ddown) compose_ds(*this, *ds, *grad, a.lora);
  compose_gradients(*this, GradientOutputs(*this, g), *ds, *grad, *dropped, *s, a.lora);
}

}  // namespace wick
