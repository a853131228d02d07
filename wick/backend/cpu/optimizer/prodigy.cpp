// Prodigy (Mishchenko & Defazio, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner", 2023) as prodigyopt
// computes it: AdamW on gradients times d, where d is a lower bound of the distance from the first parameters to the
// solution, found from all gradients so far.
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
  float grad_scale, coupled_decay, beta1, m_share, beta2, v_share, decay, rate, eps;
};
struct ProdigySumFactors {
  float coupled_decay;  // of the parameter, beside the gradient before it is scaled
  float beta3, share;   // s = beta3 s + share * gradient
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

// The next s, and the sums that the estimate needs.
ProdigySums ProdigySumsBlock(const ProdigySumFactors& f, const float* grad, const float* param, const float* first,
                             float* s, int64_t n) {
  WideSum towards = WideSum::zero(), magnitudes = towards;
  for_columns(n, [&](auto at) HWY_ATTR {
    const FloatVec p = at.of(param), g = hn::MulAdd(p, set(f.coupled_decay), at.of(grad));
    const FloatVec next = hn::MulAdd(g, set(f.share), hn::Mul(at.of(s), set(f.beta3)));
    at.put(next, s);
    towards.add(hn::Mul(g, hn::Sub(at.of(first), p)));
    magnitudes.add(hn::Abs(next));
  });
  return {towards.total(), magnitudes.total()};
}

void ProdigyBlock(const ProdigyFactors& s, float* param, float* first, float* second, const float* grad, int64_t n) {
  for_columns(n, [&](auto at) HWY_ATTR {
    const FloatVec g = hn::MulAdd(at.of(param), set(s.coupled_decay), hn::Mul(at.of(grad), set(s.grad_scale)));
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

// The same of each slice_p-th element of a parameter, from its first.
ProdigySums sliced_sums(const ProdigySumFactors& f, const SlotRange& part, int64_t slice_p) {
  const OptimizerSlot& slot = *part.slot;
  const float *grad = part.of(slot.grad), *param = part.of(slot.param), *first = part.of(slot.states[3]);
  float* s = part.of(slot.states[2]);
  ProdigySums sums{};
  for (int64_t i = (slice_p - part.first % slice_p) % slice_p; i < part.count; i += slice_p) {
    const float g = std::fma(param[i], f.coupled_decay, grad[i]);
    s[i] = std::fma(g, f.share, s[i] * f.beta3);
    sums.towards_first += double(g) * (double(first[i]) - double(param[i]));
    sums.magnitudes += double(std::abs(s[i]));
  }
  return sums;
}

ProdigySums sums(const RuleStep& step, double beta3, double share) {
  const ProdigyRule& rule = step.rule.prodigy;
  const double scale = double(step.grad_scale), coupled = rule.decouple ? 0 : double(step.rule.weight_decay);
  const ProdigySumFactors factors{
      .coupled_decay = float(coupled / scale), .beta3 = float(beta3), .share = float(share * scale)};
  const std::vector<SlotRange> parts = parts_of(step.slots);
  std::vector<ProdigySums> partial(parts.size());
  for_parts(parts, [&](int64_t i, const SlotRange& part) {
    const OptimizerSlot& slot = *part.slot;
    partial[size_t(i)] = rule.slice_p > 1 ? sliced_sums(factors, part, rule.slice_p)
                                          : HWY_DYNAMIC_DISPATCH(ProdigySumsBlock)(
                                                factors, part.of(slot.grad), part.of(slot.param),
                                                part.of(slot.states[3]), part.of(slot.states[2]), part.count);
  });
  ProdigySums total{};
  for (const ProdigySums& one : partial) {
    total.towards_first += one.towards_first;
    total.magnitudes += one.magnitudes;
  }
  total.towards_first *= scale;
  return total;
}

// The estimate d after one more of it.
void follow(const OptimizerRule& rule, float estimate, float* scalars) {
  float& d = scalars[kProdigyD];
  if (!limits_growth(rule)) {
    d = std::max(d, estimate);
    return;
  }
  float& largest = scalars[kProdigyLargestD];
  largest = std::max(largest, estimate);
  if (d == rule.prodigy.d0) d = std::max(d, estimate);
  d = std::min(largest, d * rule.prodigy.growth_rate);
}

}  // namespace

void prodigy(const RuleStep& step) {
  const OptimizerRule& rule = step.rule;
  float* scalars = step.scalars;
  const ProdigyRule& own = rule.prodigy;
  const double beta1 = double(rule.beta1), beta2 = double(rule.beta2),
               beta3 = own.beta3 < 0 ? std::sqrt(beta2) : double(own.beta3);
  const double lr = double(scalars[kLr]), d = double(scalars[kProdigyD]), first = double(own.d0);
  if (lr <= 0) return;
  const double t = double(scalars[kProdigyUpdates]) + 1;
  const double rate =
      own.use_bias_correction ? d * lr * std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t)) : d * lr;

  const ProdigySums found = sums(step, beta3, d / first * (own.safeguard_warmup ? d : rate));
  if (found.magnitudes == 0) return;  // there was no gradient yet
  const double numerator = beta3 * double(scalars[kProdigyNumerator]) + d / first * rate * found.towards_first;
  scalars[kProdigyNumerator] = float(numerator);
  follow(rule, float(double(own.d_coef) * numerator / found.magnitudes), scalars);
  scalars[kProdigyUpdates] += 1;

  const double decay = double(rule.weight_decay);
  const ProdigyFactors factors{.grad_scale = step.grad_scale,
                               .coupled_decay = own.decouple ? 0 : rule.weight_decay,
                               .beta1 = rule.beta1,
                               .m_share = float(d * (1 - beta1)),
                               .beta2 = rule.beta2,
                               .v_share = float(d * d * (1 - beta2)),
                               .decay = own.decouple ? float(1 - rate * decay) : 1,
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
