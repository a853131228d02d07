// Mean squared error and cross-entropy.
#include <cmath>

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

void MapMseBackward(const View& da, float scale, const View& a, const View& b) {
  map(ScaledDifference{set(scale)}, da, a, b);
}

// log(sum(exp(x)))
double LogSumExpRow(const float* x, int64_t n) {
  const float maximum = maximum_of(x, n);
  const ExpShifted shifted{set(maximum)};
  WideSum sum = WideSum::zero();
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) sum.add(shifted(load(x + i)));
  double rest = 0;
  for (; i < n; ++i) rest += std::exp(double(x[i]) - maximum);
  return maximum + std::log(sum.total() + rest);
}

void SoftmaxByLseRow(float* y, const float* x, int64_t n, float lse) { map(ExpShifted{set(lse)}, y, n, x); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cassert>
#include <numeric>
#include <vector>

#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/parallel.h"

namespace wick {

HWY_EXPORT(MseBlock);
HWY_EXPORT(MapMseBackward);
HWY_EXPORT(LogSumExpRow);
HWY_EXPORT(SoftmaxByLseRow);

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
  HWY_DYNAMIC_DISPATCH(MapMseBackward)(da, scale, a, b);
}

void CpuBackend::cross_entropy(View loss, View dlogits, View logits, View targets) {
  const int64_t classes = logits.dim(1);
  const DenseInput input(logits);
  const DenseOutput gradient(dlogits), losses(loss);
  parallel_each(logits.dim(0), logits.numel(), [&](int64_t i) {
    const float* const row = input.data() + i * classes;
    float* const slope = gradient.data() ? gradient.data() + i * classes : nullptr;
    const int64_t target = targets.as<int64_t>()[i * targets.stride[0]];
    assert(target < classes);
    losses.data()[i] = 0;
    if (target < 0) {
      if (slope) std::fill_n(slope, classes, 0.0f);
      return;
    }
    const double lse = HWY_DYNAMIC_DISPATCH(LogSumExpRow)(row, classes);
    losses.data()[i] = float(lse - row[target]);
    if (!slope) return;
    HWY_DYNAMIC_DISPATCH(SoftmaxByLseRow)(slope, row, classes, float(lse));
    slope[target] -= 1;
  });
  gradient.finish();
  losses.finish();
}

}  // namespace wick
#endif  // HWY_ONCE
