#include "wick/backend/cuda/linear/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/linear/extended_gemm.h"
#include "wick/backend/cuda/linear/lora_products.h"
#include "wick/backend/cuda/runtime/ways.h"

namespace wick {
namespace {

// Where copies will lie: aligned, and not to be read.
void* const kCopied = reinterpret_cast<void*>(uintptr_t{1} << 20);

bool rows_aligned(const DeviceMatrix& m) {
  const int64_t elements = 16 / int64_t(size_of(m.dtype));
  return m.ld % elements == 0 && (m.transposed ? m.rows : m.cols) % elements == 0 && aligned(m.data);
}

DeviceMatrix copied(DType dtype, int64_t rows, int64_t cols) { return {kCopied, dtype, rows, cols, cols, false}; }

// A matrix as MatrixInput reads it.
DeviceMatrix input_layout(const View& v, DType dtype) {
  if (!v) return {};
  if (const auto direct = as_rows(v); direct && v.dtype == dtype) return *direct;
  return copied(dtype, v.numel() / std::max<int64_t>(v.shape.back(), 1), v.shape.back());
}

// Where SwiGLU of many tokens is one product with the gates and values: unless too much of the last rows of tiles would
// lie beyond the tokens. cuBLASLt's may be half as high.
bool gated_fits(const Gpu& gpu, const LinearCall& l) {
  constexpr int64_t kTile = 256;
  const int64_t beyond = ceil_div(l.x.rows, kTile) * kTile - l.x.rows;
  const auto weight = is_quantized(l.w.dtype) ? std::nullopt : as_matrix(l.w);
  return l.gated && weight && beyond <= l.x.rows / 7 &&
         gemm_sm90_fits(gpu, ExtendedGemm{.y = l.y, .x = l.x, .w = weight->t(), .gated = true});
}

// For a weight that the other ways do not take.
LinearWay general_way(DType weight) {
  return is_block(weight) ? LinearWay::sliced : has_row_format(weight) ? LinearWay::decoded : LinearWay::cublaslt;
}

bool can_go(const Gpu& gpu, const LinearCall& l, LinearWay way) {
  if (way == LinearWay::few_rows) return few_rows_fit(gpu, l);
  if (way == LinearWay::extended) return gated_fits(gpu, l);
  return way == general_way(l.w.dtype);
}

// Whether the fused kernels take these LoRAs: of one rank and scale, side by side on all outputs.
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

// Whether blocks can share a long reduction of few columns, through the memory of a cluster; elsewhere cuBLASLt, which
// splits it, is faster.
bool thin_kernels_share(const Gpu& gpu) { return gpu.capability() >= 90; }

bool adapter_fits(const Gpu& gpu, const LoraArgs& a) {
  const auto y = as_rows(a.y), x = as_rows(a.x), s = a.s ? as_rows(a.s) : DeviceMatrix{};
  if (a.lora.blocks.size() != 1 || !side_by_side(a.lora, a.y.dim(-1)) || !y || !x || !s) return false;
  if (a.y.dtype != a.x.dtype || !factors_fit(gpu, *x)) return false;
  if (a.s && (a.s.dtype != a.x.dtype || s->transposed)) return false;
  const View &down = a.lora.down, &up = a.lora.blocks.front().up;
  return few_rows_fit(gpu, AdapterProduct{*y, *x, {}, {}, *s, 1}, down.shape[0]) &&
         !factor_layout(up, factors_dtype(down, up, a.x.dtype)).transposed;
}

// Whether one pass over dy, then one over x, is faster: measured on an H100.
bool prefers_passes(const Gpu& gpu, const DeviceMatrix& dy, const DeviceMatrix& x, int64_t rank) {
  constexpr int64_t kManyRows = 2048, kWidest = 12288;
  return dy.rows >= kManyRows && dy.cols <= kWidest && stream_fits(gpu, dy, rank) && stream_fits(gpu, x, rank);
}

// Codes are multiplied by a way of their own, and composed with the rest.
bool product_fits(const Gpu& gpu, const ExtendedGemm& g) {
  return g.w.dtype == DType::fp8_product ? gpu.capability() >= 80 : extended_gemm_fits(gpu, g);
}

bool is_wanted(const View& v) { return bool(v); }

std::string_view name_of(LowWay way) {
  constexpr std::string_view kNames[] = {"in the product", "by a projection", "by a pass", "by cuBLASLt"};
  return kNames[size_t(way)];
}
}  // namespace

bool any_wanted(const std::vector<View>& views) { return std::any_of(views.begin(), views.end(), is_wanted); }

bool lies_ready(const View& factor, DType dtype) {
  const auto matrix = as_matrix(factor);
  return matrix && factor.dtype == dtype && rows_aligned(*matrix);
}

DeviceMatrix factor_layout(const View& factor, DType dtype) {
  if (lies_ready(factor, dtype)) return *as_matrix(factor);
  return {kCopied, dtype, factor.shape[0], factor.shape[1], padded(factor.shape[1]), false};
}

DType factors_dtype(const View& down, const View& up, DType activations) {
  return lies_ready(down, DType::f32) && lies_ready(up, DType::f32) ? DType::f32 : activations;
}

LinearWay plan_linear(const Gpu& gpu, const LinearCall& l) {
  if (const auto forced = forced_way<LinearWay>("linear", kLinearWays); forced && can_go(gpu, l, *forced))
    return *forced;
  for (const LinearWay way : {LinearWay::few_rows, LinearWay::extended})
    if (can_go(gpu, l, way)) return way;
  return general_way(l.w.dtype);
}

std::string to_string(const LinearCall& l) {
  return fmt::format("linear {} x {} -> {}{}, {}", l.x.rows, l.x.cols, l.y.cols, l.gated ? ", swiglu" : "",
                     wick::name_of(l.w.dtype));
}

std::optional<ExtendedGemm> forward_product(const Gpu& gpu, const LoraArgs& a) {
  const auto y = as_rows(a.y), x = as_rows(a.x), w = as_matrix(a.w), s = a.s ? as_rows(a.s) : DeviceMatrix{};
  const bool dense_bias = !a.bias || (a.bias.dtype == DType::f32 && a.bias.contiguous());
  if (!side_by_side(a.lora, a.y.dim(-1)) || !y || !x || !w || !s || !dense_bias || !factors_fit(gpu, *x)) return {};
  if (a.s && (a.s.dtype != a.x.dtype || s->transposed)) return {};
  const DeviceMatrix residual = input_layout(a.residual, a.x.dtype);
  if (residual.data && (residual.transposed || !rows_aligned(residual))) return {};
  ExtendedGemm g{.y = *y, .x = *x, .w = w->t(), .bias = a.bias.as<float>(), .residual = residual};
  if (!g.w.transposed || !product_fits(gpu, g)) return {};
  const DeviceMatrix down = factor_layout(a.lora.down, a.x.dtype);
  if (down.transposed) return {};
  for (const LoraBlock& block : a.lora.blocks) {
    const DeviceMatrix up = factor_layout(block.up, a.x.dtype);
    if (up.transposed) return {};
    g.groups[g.group_count++] = {up.t(), block.column, block.row, down.t().col_range(block.row, up.cols)};
  }
  g.s = *s;
  g.low_scale = a.lora.blocks.front().scale;
  return g;
}

std::optional<LinearCall> few_rows_call(const Gpu& gpu, const LoraArgs& a, LoraFactors& factors, bool gated) {
  const auto forced = forced_way<LoraWay>("lora", kLoraWays);
  if (forced && forced != LoraWay::few_rows) return {};
  const auto y = as_rows(a.y), x = as_rows(a.x), residual = a.residual ? as_rows(a.residual) : DeviceMatrix{};
  if (!y || !x || !residual || (a.residual && a.residual.dtype != a.x.dtype)) return {};
  LinearCall l{*y, *x, a.w, a.bias, *residual, gated, &a.lora};
  factors = a.lora;
  if (few_rows_fit(gpu, l)) return l;
  factors.down = factor_layout(a.lora.down, a.x.dtype).view();
  for (LoraBlock& block : factors.blocks) block.up = factor_layout(block.up, a.x.dtype).view();
  l.lora = &factors;
  return few_rows_fit(gpu, l) ? std::optional(l) : std::nullopt;
}

LoraPlan plan_lora(const Gpu& gpu, const LoraArgs& a) {
  if (!a.w) return {adapter_fits(gpu, a) ? LoraWay::adapter : LoraWay::composed};
  LoraFactors factors;
  if (few_rows_call(gpu, a, factors)) return {LoraWay::few_rows};
  if (is_quantized(a.w.dtype) && a.w.dtype != DType::fp8_product) return {LoraWay::in_blocks};
  const std::optional<ExtendedGemm> g = forward_product(gpu, a);
  if (!g) return {LoraWay::composed};
  const ProductPlan product = plan_extended_gemm(gpu, *g);
  const LoraWay way = product.way == ProductWay::wgmma ? LoraWay::wgmma
                      : product.way == ProductWay::mma ? LoraWay::mma
                                                       : LoraWay::composed;
  const LowWay low = product.makes_low()       ? LowWay::product
                     : thin_kernels_share(gpu) ? LowWay::projection
                                               : LowWay::cublaslt;
  return {way, low, true, product};
}

std::optional<ExtendedGemm> backward_product(const Gpu& gpu, const LoraArgs& a, const LoraGradients& g) {
  const DType dtype = g.dy.dtype;
  const bool dup = any_wanted(g.dups);
  const auto dy = as_rows(g.dy), w = as_matrix(a.w), dx = g.dx ? as_rows(g.dx) : DeviceMatrix{};
  const auto x = g.ddown ? as_rows(a.x) : DeviceMatrix{}, s = dup ? as_rows(a.s) : DeviceMatrix{};
  if (!side_by_side(a.lora, a.w.shape[0]) || !dy || !w || !dx || !x || !s || !factors_fit(gpu, *dy)) return {};
  if (g.ddown && (a.x.dtype != dtype || !factors_fit(gpu, *x))) return {};
  if (dup && (a.s.dtype != dtype || s->transposed)) return {};
  ExtendedGemm product{.y = *dx, .x = *dy, .w = *w};
  if (g.dx && (product.w.transposed || !product_fits(gpu, product))) return {};
  const DeviceMatrix down = factor_layout(a.lora.down, dtype);
  const auto lies_transposed = [&](const LoraBlock& b) { return factor_layout(b.up, dtype).transposed; };
  if (down.transposed || std::any_of(a.lora.blocks.begin(), a.lora.blocks.end(), lies_transposed)) return {};
  product.groups[product.group_count++] = {down};
  product.low = copied(dtype, dy->rows, padded(down.rows));
  if (g.ddown) product.s = product.low;
  product.s_scale = product.low_scale = a.lora.blocks.front().scale;
  return product;
}

LoraBackwardPlan plan_lora_backward(const Gpu& gpu, const LoraArgs& a, const LoraGradients& g) {
  std::optional<ExtendedGemm> product = backward_product(gpu, a, g);
  if (!product) return {};
  const int64_t rank = a.lora.down.shape[0];
  const bool all =
      g.ddown && g.dups.size() == a.lora.blocks.size() && std::all_of(g.dups.begin(), g.dups.end(), is_wanted);
  LoraBackwardPlan plan{.is_fused = true};
  const bool shared = thin_kernels_share(gpu);
  if (all && prefers_passes(gpu, product->x, *as_rows(a.x), rank)) {
    plan.ds = LowWay::pass;
    plan.gradients = GradientsWay::pass;
  } else if (shared) {
    plan.ds = LowWay::projection;
    plan.gradients = g.ddown || any_wanted(g.dups) ? GradientsWay::kernel : GradientsWay::none;
    if (a.lora.blocks.size() == 1) product->groups[0].p = factor_layout(a.lora.blocks.front().up, g.dy.dtype);
  }
  if (g.dx) plan.dx = plan_extended_gemm(gpu, *product);
  if (g.dx && plan.ds == LowWay::projection && plan.dx.makes_low()) plan.ds = LowWay::product;
  return plan;
}

GradientsWay plan_lora_gradients(const Gpu& gpu, const LoraArgs& a, const LoraGradients& g) {
  // At many rows and a high rank the products are large enough for cuBLASLt's, which then are faster.
  constexpr int64_t kManyRows = 2048, kHighRank = 32;
  const DType dtype = g.dy.dtype;
  const DeviceMatrix dy = input_layout(g.dy, dtype), x = input_layout(a.x, dtype);
  if (a.lora.blocks.size() != 1 || !side_by_side(a.lora, dy.cols)) return GradientsWay::cublaslt;
  if (!g.ddown && !any_wanted(g.dups)) return GradientsWay::none;
  if (!factors_fit(gpu, dy) || !factors_fit(gpu, x)) return GradientsWay::cublaslt;
  const int64_t rank = a.lora.down.shape[0];
  if (dy.rows >= kManyRows && rank >= kHighRank) return GradientsWay::cublaslt;
  return few_rows_fit(gpu, dy.rows, rank) ? GradientsWay::one_launch : GradientsWay::kernel;
}

std::string_view to_string(GradientsWay way) {
  constexpr std::string_view kNames[] = {"unwanted", "in one launch", "by lora_factors", "by passes", "by cuBLASLt"};
  return kNames[size_t(way)];
}

std::string to_string(const LoraPlan& plan) {
  if (!plan.is_fused) return std::string(kLoraWays[size_t(plan.way)]);
  return fmt::format("{}, s {}", to_string(plan.product), name_of(plan.low));
}

std::string to_string(const LoraBackwardPlan& plan) {
  if (!plan.is_fused) return "composed";
  return fmt::format("{}, ds {}, gradients {}", to_string(plan.dx), name_of(plan.ds), to_string(plan.gradients));
}

}  // namespace wick
