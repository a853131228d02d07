// Mean squared error.
#include "wick/backend/cpu/block_loop.h"
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/loss.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

struct SquaredDifference {
  HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b) const {
    const FloatVec difference = hn::Sub(a, b);
    return hn::Mul(difference, difference);
  }
};

struct ScaledDifference {
  FloatVec scale;
  HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b) const { return hn::Mul(scale, hn::Sub(a, b)); }
};

double MseBlock(const float* a, const float* b, int64_t n) { return sum_of(SquaredDifference(), n, a, b); }

void MseBackwardBlock(float* da, float scale, const float* a, const float* b, int64_t n) {
  map(ScaledDifference{set(scale)}, da, n, a, b);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <numeric>
#include <vector>

namespace wick {

HWY_EXPORT(MseBlock);
HWY_EXPORT(MseBackwardBlock);

void CpuBackend::mse(View loss, View a, View b) {
  const BlockLoop loop({}, {a, b});
  std::vector<double> partial(size_t(loop.blocks()));
  loop.run([&](const BlockLoop::Pointers& p, int64_t n, int64_t block) {
    partial[size_t(block)] = HWY_DYNAMIC_DISPATCH(MseBlock)(p[0], p[1], n);
  });
  *loss.as<float>() = float(std::accumulate(partial.begin(), partial.end(), 0.0) / double(a.numel()));
}

void CpuBackend::mse_backward(View da, View dloss, View a, View b) {
  const float scale = float(2.0 * double(*dloss.as<float>()) / double(a.numel()));
  BlockLoop({da}, {a, b}).run([=](const BlockLoop::Pointers& p, int64_t n, int64_t) {
    HWY_DYNAMIC_DISPATCH(MseBackwardBlock)(p[0], scale, p[1], p[2], n);
  });
}

}  // namespace wick
#endif  // HWY_ONCE
