// Optimizer steps: the part that all rules share (clipping, loss scale, halting, averages, copies), the rules (update()
// lists them; AdamW as torch.optim.AdamW computes it for one tensor), and the norm that clipping needs.
#include "wick/backend/cpu/block_loop.h"
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/optimizer.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

#ifndef WICK_BACKEND_CPU_ADAMW_FACTORS
#define WICK_BACKEND_CPU_ADAMW_FACTORS
namespace wick {
namespace {

struct AdamWFactors {
  float grad_scale, decay, one_minus_beta1, beta2, one_minus_beta2, inverse_correction2, eps, step_size;
};

}  // namespace
}  // namespace wick
#endif

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

struct AdamWVectors {
  FloatVec param, m, v;
};

HWY_INLINE AdamWVectors adamw_step(const AdamWFactors& s, AdamWVectors old, FloatVec grad) {
  const FloatVec g = hn::Mul(grad, set(s.grad_scale));
  const FloatVec m = hn::MulAdd(hn::Sub(g, old.m), set(s.one_minus_beta1), old.m);
  const FloatVec v = hn::MulAdd(hn::Mul(g, g), set(s.one_minus_beta2), hn::Mul(old.v, set(s.beta2)));
  const FloatVec denominator = hn::MulAdd(hn::Sqrt(v), set(s.inverse_correction2), set(s.eps));
  const FloatVec update = hn::Div(hn::Mul(m, set(s.step_size)), denominator);
  return {hn::Sub(hn::Mul(old.param, set(s.decay)), update), m, v};
}

void AdamWBlock(const AdamWFactors& s, float* param, float* m, float* v, const float* grad, int64_t n) {
  for_columns(n, [&](auto at) HWY_ATTR {
    const AdamWVectors next = adamw_step(s, {at.of(param), at.of(m), at.of(v)}, at.of(grad));
    at.put(next.param, param);
    at.put(next.m, m);
    at.put(next.v, v);
  });
}

// In doubles from the start, so that gradients near the ends of f32's range count.
double SumOfSquaresBlock(const float* x, int64_t n) {
  const Doubles wide;
  const hn::Rebind<float, Doubles> narrow;
  const int64_t step = int64_t(hn::Lanes(wide));
  auto even = hn::Zero(wide), odd = even;
  int64_t i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    const auto a = hn::PromoteTo(wide, hn::LoadU(narrow, x + i));
    const auto b = hn::PromoteTo(wide, hn::LoadU(narrow, x + i + step));
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  double sum = hn::GetLane(hn::SumOfLanes(wide, hn::Add(even, odd)));
  for (; i < n; ++i) sum += double(x[i]) * double(x[i]);
  return sum;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

namespace wick {

HWY_EXPORT(AdamWBlock);
HWY_EXPORT(SumOfSquaresBlock);

namespace {

AdamWFactors adamw_factors(const OptimizerRule& rule, const float* scalars, float grad_scale) {
  const double beta1 = double(rule.beta1), beta2 = double(rule.beta2), lr = double(scalars[kLr]);
  const double t = double(scalars[kSteps]);
  return {.grad_scale = grad_scale,
          .decay = float(1 - lr * double(rule.weight_decay)),
          .one_minus_beta1 = float(1 - beta1),
          .beta2 = rule.beta2,
          .one_minus_beta2 = float(1 - beta2),
          .inverse_correction2 = float(1 / std::sqrt(1 - std::pow(beta2, t))),
          .eps = rule.eps,
          .step_size = float(lr / (1 - std::pow(beta1, t)))};
}

// Whether there is to be an update; moves the scalars on.
bool begin_step(const OptimizerStep& step, float* scalars) {
  if (scalars[kHalted] != 0) return false;
  const float norm = scalars[kGradScale] / scalars[kLossScale] * std::sqrt(scalars[kSumOfSquares]);
  scalars[kGradNorm] = norm;
  if (!std::isfinite(norm)) {
    scalars[kGoodSteps] = 0;
    if (step.scales_loss && scalars[kLossScale] > 1)
      scalars[kLossScale] /= 2;
    else
      scalars[kHalted] = 1;
    return false;
  }
  scalars[kSteps] += 1;
  return true;
}

// After the update, which still needed the old scale.
void end_step(const OptimizerStep& step, float* scalars) {
  constexpr float kPatience = 2000, kLargest = 65536;
  if (!step.scales_loss || ++scalars[kGoodSteps] < kPatience) return;
  scalars[kGoodSteps] = 0;
  scalars[kLossScale] = std::min(2 * scalars[kLossScale], kLargest);
}

// The factor of the gradients, clipped as PyTorch's clip_grad_norm_ does.
float clipped_scale(const OptimizerStep& step, const float* scalars) {
  const float scale = scalars[kGradScale] / scalars[kLossScale], norm = scalars[kGradNorm], most = step.max_grad_norm;
  return most > 0 && norm > most ? scale * (most / (norm + 1e-6f)) : scale;
}

// Calls f(slot, first element, number of elements) for parts of all slots, from several threads.
template <class F>
void for_parts(const std::vector<OptimizerSlot>& slots, const F& f) {
  constexpr int64_t kPart = 1 << 13;
  struct Part {
    const OptimizerSlot* slot;
    int64_t begin, end;
  };
  std::vector<Part> parts;
  int64_t elements = 0;
  for (const OptimizerSlot& slot : slots) {
    const int64_t n = slot.param.numel();
    assert(slot.grad.numel() == n);
    for (int64_t i = 0; i < n; i += kPart) parts.push_back({&slot, i, std::min(n, i + kPart)});
    elements += n;
  }
  parallel_each(int64_t(parts.size()), elements, [&](int64_t i) {
    f(*parts[size_t(i)].slot, parts[size_t(i)].begin, parts[size_t(i)].end - parts[size_t(i)].begin);
  });
}

// Parameters and states of all slots, by the rule, from `grad_scale` times the gradients.
void update(const std::vector<OptimizerSlot>& slots, const OptimizerRule& rule, const float* scalars,
            float grad_scale) {
  switch (rule.kind) {
    case OptimizerKind::adamw: {
      const AdamWFactors factors = adamw_factors(rule, scalars, grad_scale);
      return for_parts(slots, [&](const OptimizerSlot& slot, int64_t first, int64_t n) {
        const auto from = [first](const View& v) { return v.as<float>() + first; };
        HWY_DYNAMIC_DISPATCH(AdamWBlock)
        (factors, from(slot.param), from(slot.states[0]), from(slot.states[1]), from(slot.grad), n);
      });
    }
  }
}

void move_towards(Backend& cpu, const View& average, const View& value, float share) {
  const Tensor away = Tensor::empty(value.shape);
  cpu.binary(Binary::sub, away, value, average);
  cpu.accumulate(average, away, share);
}

}  // namespace

void CpuBackend::optimizer_step(const std::vector<OptimizerSlot>& slots, const OptimizerStep& step, View scalar_view) {
  float* scalars = scalar_view.as<float>();
  if (!begin_step(step, scalars)) return;
  update(slots, step.rule, scalars, clipped_scale(step, scalars));
  const float t = scalars[kSteps], decay = std::min(step.average_decay, (1 + t) / (10 + t));
  for (const OptimizerSlot& slot : slots) {
    if (slot.average) move_towards(*this, slot.average, slot.param, 1 - decay);
    if (slot.copy) copy(slot.copy, slot.param);
  }
  end_step(step, scalars);
}

void CpuBackend::sum_of_squares(View total, const std::vector<View>& tensors) {
  double sum = 0;
  for (const View& tensor : tensors) {
    const BlockLoop loop({}, {tensor});
    std::vector<double> partial(size_t(loop.blocks()));
    loop.run([&](const BlockLoop::Pointers& p, int64_t n, int64_t block) {
      partial[size_t(block)] = HWY_DYNAMIC_DISPATCH(SumOfSquaresBlock)(p[0], n);
    });
    sum = std::accumulate(partial.begin(), partial.end(), sum);
  }
  *total.as<float>() = float(sum);
}

}  // namespace wick
#endif  // HWY_ONCE
