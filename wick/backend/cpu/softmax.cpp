// Softmax over rows.
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/parallel.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/softmax.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

struct SoftmaxSlope {
  FloatVec mean;
  HWY_INLINE FloatVec operator()(FloatVec dy, FloatVec y) const { return hn::Mul(y, hn::Sub(dy, mean)); }
};

void SoftmaxRow(float* y, const float* x, int64_t n) {
  map(ExpShifted{set(maximum_of(x, n))}, y, n, x);
  map(Scaled{set(float(1 / sum_of(Same(), n, y)))}, y, n, y);
}

void SoftmaxBackwardRow(float* dx, const float* dy, const float* y, int64_t n) {
  map(SoftmaxSlope{set(float(sum_of(Mul(), n, dy, y)))}, dx, n, dy, y);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick {

HWY_EXPORT(SoftmaxRow);
HWY_EXPORT(SoftmaxBackwardRow);

void CpuBackend::softmax(View y, View x) {
  const DenseInput input(x);
  const DenseOutput output(y);
  const int64_t n = x.dim(-1);
  if (x.numel() == 0) return;
  parallel_each(x.numel() / n, x.numel(), [&](int64_t row) {
    HWY_DYNAMIC_DISPATCH(SoftmaxRow)(output.data() + row * n, input.data() + row * n, n);
  });
  output.finish();
}

void CpuBackend::softmax_backward(View dx, View dy, View y) {
  const DenseInput gradient(dy), probability(y);
  const DenseOutput output(dx);
  const int64_t n = y.dim(-1);
  if (y.numel() == 0) return;
  parallel_each(y.numel() / n, y.numel(), [&](int64_t row) {
    HWY_DYNAMIC_DISPATCH(SoftmaxBackwardRow)
    (output.data() + row * n, gradient.data() + row * n, probability.data() + row * n, n);
  });
  output.finish();
}

}  // namespace wick
#endif  // HWY_ONCE
