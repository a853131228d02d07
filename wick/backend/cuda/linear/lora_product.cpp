#include "wick/backend/cuda/linear/lora_product.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "wick/backend/cuda/linear/gemm_sm80.h"
#include "wick/backend/cuda/runtime/cublaslt.h"

namespace wick {

namespace {

std::string_view preference() {
  const char* const way = std::getenv("WICK_CUDA_LORA");
  return way ? way : "";
}

MmaTile mma_tile(const Gpu& gpu, const ExtendedGemm& g) {
  for (const MmaTile tile : kMmaTiles)
    if (preference() == name_of(tile)) return tile;
  return plan_mma_gemm(gpu, g).tile;
}

// What a device before 9.0 is expected to take for the composition: measured on an H100 with cuBLASLt's kernels
// for 8.x, the fastest of their tiles and splits. The busiest multiprocessor's share of y counts, in tiles of 64 x 64.
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
  const View bias = g.bias ? View{const_cast<float*>(g.bias), DType::f32, {g.y.cols}, {1}} : View();
  cuda.linear(g.y.view(), g.x.view(), g.w.t().view(), bias, g.residual.data ? g.residual.view() : View());
  int64_t column = 0;
  for (int i = 0; i < g.group_count; ++i) {
    const DeviceMatrix& f = g.groups[size_t(i)].f;
    const DeviceMatrix low = g.low.col_range(g.groups[size_t(i)].low_at, f.rows);
    cuda.cublas().gemm(g.y.col_range(column, f.cols), low, f, 1, 1);
    column += f.cols;
  }
}

ProductWay product_way(const Gpu& gpu, const ExtendedGemm& g) {
  const bool wgmma = extended_gemm_fits(gpu, g), mma = mma_gemm_fits(gpu, g);
  if (preference() == "composed") return ProductWay::composed;
  if (mma && preference().substr(0, 3) == "mma") return ProductWay::mma;
  if (wgmma) return ProductWay::wgmma;
  if (!mma || gpu.capability() >= 90) return ProductWay::composed;
  return plan_mma_gemm(gpu, g).microseconds < composed_microseconds(gpu, g) ? ProductWay::mma : ProductWay::composed;
}

}  // namespace

bool lora_product_fits(const Gpu& gpu, const ExtendedGemm& g) {
  return extended_gemm_fits(gpu, g) || mma_gemm_fits(gpu, g);
}

ProductPlan plan_lora_product(const Gpu& gpu, const ExtendedGemm& g) {
  const ProductWay way = product_way(gpu, g);
  return {way, way == ProductWay::wgmma ? plan_gemm(gpu, g) : GemmPlan{}};
}

void lora_product(CudaBackend& cuda, const ExtendedGemm& g, const ProductPlan& plan) {
  switch (plan.way) {
    case ProductWay::wgmma:
      return extended_gemm(cuda, g, plan.gemm);
    case ProductWay::mma:
      return mma_gemm(cuda, g, mma_tile(cuda, g));
    case ProductWay::composed:
      return compose(cuda, g);
  }
}

}  // namespace wick
