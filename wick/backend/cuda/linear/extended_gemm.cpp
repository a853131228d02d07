#include "wick/backend/cuda/linear/extended_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "wick/backend/cuda/linear/fp8.h"
#include "wick/backend/cuda/linear/plan.h"
#include "wick/backend/cuda/runtime/cublaslt.h"
#include "wick/backend/cuda/runtime/ways.h"

namespace wick {

namespace {

// The expected time of the composition on a device before 9.0: measured on an H100 with cuBLASLt's kernels for 8.x, the
// fastest of their tiles and splits. It counts the busiest SM's share of y, in tiles of 64 x 64.
double composed_microseconds(const Gpu& gpu, const ExtendedGemm& g) {
  constexpr int64_t kFewRows = 600;  // cuBLASLt splits reductions up to there
  const auto tiles = [&](int64_t side) { return (g.y.rows + side - 1) / side * ((g.y.cols + side - 1) / side); };
  double share = std::numeric_limits<double>::infinity();
  for (const int64_t split : {1, 2, 4}) {
    if (split > 1 && g.y.rows > kFewRows) break;
    const auto busiest = [&](int64_t count) {
      return double((count * split + gpu.multiprocessors() - 1) / gpu.multiprocessors()) / double(split);
    };
    share = std::min({share, 4 * busiest(tiles(128)), 1.25 * busiest(tiles(64))});
  }
  const double product = 5.3 + 2.38e-3 * double(g.x.cols) * share;
  return product + 2.5 * g.group_count + 1.6e-6 * double(g.y.rows) * double(g.y.cols);
}

void compose(CudaBackend& cuda, const ExtendedGemm& g) {
  if (g.w.dtype == DType::fp8_product) return fp8_extended(cuda, g);
  const View bias = g.bias ? View{const_cast<float*>(g.bias), DType::f32, {g.y.cols}, {1}} : View();
  cuda.linear(g.y.view(), g.x.view(), g.w.t().view(), bias, g.residual.data ? g.residual.view() : View());
  for (int i = 0; i < g.group_count; ++i) {
    const auto& [f, column, low_at, p] = g.groups[i];
    cuda.cublas().gemm(g.y.col_range(column, f.cols), g.low.col_range(low_at, f.rows), f, 1, 1);
  }
}

// A long reduction of few rows into few columns: there are too few tiles, and cuBLASLt splits it. Measured on an H200
// (docs/kernels/lora_linear.md).
bool is_long_and_thin(const ExtendedGemm& g) { return g.y.rows <= 512 && g.x.cols >= 4096 && g.x.cols >= 3 * g.y.cols; }

ProductWay product_way(const Gpu& gpu, const ExtendedGemm& g) {
  const bool wgmma = gemm_sm90_fits(gpu, g), mma = gemm_sm80_fits(gpu, g);
  const std::optional<LoraWay> forced = forced_way<LoraWay>("lora", kLoraWays);
  if (forced == LoraWay::composed) return ProductWay::composed;
  if (mma && forced == LoraWay::mma) return ProductWay::mma;
  if (wgmma && (forced == LoraWay::wgmma || !is_long_and_thin(g))) return ProductWay::wgmma;
  if (!mma || gpu.capability() >= 90) return ProductWay::composed;
  return plan_gemm_sm80(gpu, g).microseconds < composed_microseconds(gpu, g) ? ProductWay::mma : ProductWay::composed;
}

}  // namespace

std::string to_string(const ProductPlan& plan) {
  if (plan.way == ProductWay::composed) return "composed";
  if (plan.way == ProductWay::mma) return fmt::format("mma {}", kMmaTileNames[size_t(plan.tile)]);
  const GemmPlan& g = plan.gemm;
  return fmt::format("wgmma {} rows, {} x {} and {} columns{}{}", 64 * g.consumers, g.wide_tiles, g.wide, g.narrow,
                     g.slice ? fmt::format(", slice {}", g.slice) : "",
                     g.parts > 1 ? fmt::format(", {} parts", g.parts) : "");
}

bool extended_gemm_fits(const Gpu& gpu, const ExtendedGemm& g) {
  return gemm_sm90_fits(gpu, g) || gemm_sm80_fits(gpu, g);
}

ProductPlan plan_extended_gemm(const Gpu& gpu, const ExtendedGemm& g) {
  ProductPlan plan{product_way(gpu, g), {}, {}};
  if (plan.way == ProductWay::wgmma) plan.gemm = plan_gemm_sm90(gpu, g);
  if (plan.way == ProductWay::mma)
    plan.tile = forced_way<MmaTile>("sm80", kMmaTileNames).value_or(plan_gemm_sm80(gpu, g).tile);
  return plan;
}

void extended_gemm(CudaBackend& cuda, const ExtendedGemm& g, const ProductPlan& plan) {
  switch (plan.way) {
    case ProductWay::wgmma:
      return gemm_sm90(cuda, g, plan.gemm);
    case ProductWay::mma:
      return gemm_sm80(cuda, g, plan.tile);
    case ProductWay::composed:
      return compose(cuda, g);
  }
}

}  // namespace wick
