// Prodigy (Mishchenko & Defazio, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner", 2023) as prodigyopt
// computes it with use_bias_correction and safeguard_warmup: AdamW on gradients times d, where d is a lower bound of
// the distance from the first parameters to the solution, found from all gradients so far.
#include "wick/backend/cpu/optimizer/rules.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/optimizer/prodigy.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

#ifndef WICK_BACKEND_CPU_OPTIMIZER_PRODIGY_FACTORS
#define WICK_BACKEND_CPU_OPTIMIZER_PRODIGY_FACTORS
namespace wick {
namespace {

struct ProdigyFactors {
  float grad_scale, beta1, m_share, beta2, v_share, decay, rate, eps;
};
struct ProdigySums {
  double towards_first;  // of gradient times (first - parameter)
  double magnitudes;     // of s
};

}  // namespace
}  // namespace wick
#endif

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

// s = beta3 s + share * gradient, and the sums that the estimate needs.
ProdigySums ProdigySumsBlock(float beta3, float share, const float* grad, const float* param, const float* first,
                             float* s, int64_t n) {
  WideSum towards = WideSum::zero(), magnitudes = towards;
  for_columns(n, [&](auto at) HWY_ATTR {
    const FloatVec g = at.of(grad);
    const FloatVec next = hn::MulAdd(g, set(share), hn::Mul(at.of(s), set(beta3)));
    at.put(next, s);
    towards.add(hn::Mul(g, hn::Sub(at.of(first), at.of(param))));
    magnitudes.add(hn::Abs(next));
  });
  return {towards.total(), magnitudes.total()};
}

void ProdigyBlock(const ProdigyFactors& s, float* param, float* first, float* second, const float* grad, int64_t n) {
  for_columns(n, [&](auto at) HWY_ATTR {
    const FloatVec g = hn::Mul(at.of(grad), set(s.grad_scale));
    const FloatVec m = hn::MulAdd(g, set(s.m_share), hn::Mul(at.of(first), set(s.beta1)));
    const FloatVec v = hn::MulAdd(hn::Mul(g, g), set(s.v_share), hn::Mul(at.of(second), set(s.beta2)));
    const FloatVec update = hn::Div(hn::Mul(m, set(s.rate)), hn::Add(hn::Sqrt(v), set(s.eps)));
    at.put(hn::Sub(hn::Mul(at.of(param), set(s.decay)), update), param);
    at.put(m, first);
    at.put(v, second);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace wick {

HWY_EXPORT(ProdigySumsBlock);
HWY_EXPORT(ProdigyBlock);

namespace {

ProdigySums sums(const RuleStep& step, double beta3, double share) {
  const std::vector<SlotRange> parts = parts_of(step.slots);
  std::vector<ProdigySums> partial(parts.size());
  for_parts(parts, [&](int64_t i, const SlotRange& part) {
    const OptimizerSlot& slot = *part.slot;
    partial[size_t(i)] = HWY_DYNAMIC_DISPATCH(ProdigySumsBlock)(
        float(beta3), float(share * double(step.grad_scale)), part.of(slot.grad), part.of(slot.param),
        part.of(slot.states[3]), part.of(slot.states[2]), part.count);
  });
  ProdigySums total{};
  for (const ProdigySums& one : partial) {
    total.towards_first += one.towards_first;
    total.magnitudes += one.magnitudes;
  }
  total.towards_first *= double(step.grad_scale);
  return total;
}

}  // namespace

void prodigy(const RuleStep& step) {
  const OptimizerRule& rule = step.rule;
  float* scalars = step.scalars;
  const double beta1 = double(rule.beta1), beta2 = double(rule.beta2), beta3 = std::sqrt(beta2);
  const double lr = double(scalars[kLr]), d = double(scalars[kProdigyD]), first = double(kProdigyFirstD);
  if (lr <= 0) return;
  const double t = double(scalars[kProdigyUpdates]) + 1;
  const double rate = d * lr * std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t));

  const ProdigySums found = sums(step, beta3, d / first * d);
  if (found.magnitudes == 0) return;  // there was no gradient yet
  const double numerator = beta3 * double(scalars[kProdigyNumerator]) + d / first * rate * found.towards_first;
  const double estimate = numerator / found.magnitudes;
  scalars[kProdigyNumerator] = float(numerator);
  scalars[kProdigyD] = std::max(scalars[kProdigyD], float(estimate));
  scalars[kProdigyUpdates] += 1;

  const ProdigyFactors factors{.grad_scale = step.grad_scale,
                               .beta1 = rule.beta1,
                               .m_share = float(d * (1 - beta1)),
                               .beta2 = rule.beta2,
                               .v_share = float(d * d * (1 - beta2)),
                               .decay = float(1 - rate * double(rule.weight_decay)),
                               .rate = float(rate),
                               .eps = float(double(scalars[kProdigyD]) * double(rule.eps))};
  for_parts(parts_of(step.slots), [&](int64_t, const SlotRange& part) {
    const OptimizerSlot& slot = *part.slot;
    HWY_DYNAMIC_DISPATCH(ProdigyBlock)
    (factors, part.of(slot.param), part.of(slot.states[0]), part.of(slot.states[1]), part.of(slot.grad), part.count);
  });
}

}  // namespace wick
#endif  // HWY_ONCE
