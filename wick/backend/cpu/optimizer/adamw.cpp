// AdamW as torch.optim.AdamW computes it; with states in 8 bits as bitsandbytes does, where the parameter decays after
// the update instead of before.
#include "wick/backend/cpu/optimizer/rules.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/optimizer/adamw.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

#ifndef WICK_BACKEND_CPU_OPTIMIZER_ADAMW_FACTORS
#define WICK_BACKEND_CPU_OPTIMIZER_ADAMW_FACTORS
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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace wick {

HWY_EXPORT(AdamWBlock);

void adamw(const RuleStep& step) {
  const OptimizerRule& rule = step.rule;
  const double beta1 = double(rule.beta1), beta2 = double(rule.beta2), t = double(step.scalars[kSteps]);
  const double correction1 = 1 - std::pow(beta1, t), correction2 = 1 - std::pow(beta2, t);
  const auto factors_of = [&](double rate) {
    const double lr = rate * double(step.scalars[kLr]), decay = 1 - lr * double(rule.weight_decay);
    const double step_size = lr / correction1;
    return AdamWFactors{.grad_scale = step.grad_scale,
                        .decay = float(decay),
                        .one_minus_beta1 = float(1 - beta1),
                        .beta2 = rule.beta2,
                        .one_minus_beta2 = float(1 - beta2),
                        .inverse_correction2 = float(1 / std::sqrt(correction2)),
                        .eps = rule.eps,
                        .step_size = float(rule.kind == OptimizerKind::adamw8bit ? step_size * decay : step_size)};
  };
  update_elements<2>(
      step, {&kSignedMap, &kUnsignedMap}, factors_of,
      [](const AdamWFactors& f, float* param, const std::array<float*, 2>& states, const float* grad, int64_t n) {
        HWY_DYNAMIC_DISPATCH(AdamWBlock)
        (f, param, states[0], states[1], grad, n);
      });
}

}  // namespace wick
#endif  // HWY_ONCE
