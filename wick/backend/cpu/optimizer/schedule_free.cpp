// Schedule-free AdamW (Defazio et al., "The Road Less Scheduled", 2024) as AdamWScheduleFree of schedulefree computes
// it, with r = 0 and weight_lr_power = 2: the average x moves towards z by c = w / (sum of all w), w = (largest rate)².
// It is not kept: y, the parameter, is beta1 x + (1 - beta1) z.
#include "wick/backend/cpu/optimizer/rules.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/optimizer/schedule_free.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

#ifndef WICK_BACKEND_CPU_OPTIMIZER_SCHEDULE_FREE_FACTORS
#define WICK_BACKEND_CPU_OPTIMIZER_SCHEDULE_FREE_FACTORS
namespace wick {
namespace {

struct ScheduleFreeFactors {
  float grad_scale, beta2, one_minus_beta2, inverse_correction2, eps, weight_decay;
  float towards_z;     // c
  float y_rate, rate;  // of y and z
};

}  // namespace
}  // namespace wick
#endif

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

void ScheduleFreeBlock(const ScheduleFreeFactors& s, float* param, float* second, float* averaged, const float* grad,
                       int64_t n) {
  for_columns(n, [&](auto at) HWY_ATTR {
    const FloatVec g = hn::Mul(at.of(grad), set(s.grad_scale)), y = at.of(param), z = at.of(averaged);
    const FloatVec v = hn::MulAdd(hn::Mul(g, g), set(s.one_minus_beta2), hn::Mul(at.of(second), set(s.beta2)));
    const FloatVec denominator = hn::MulAdd(hn::Sqrt(v), set(s.inverse_correction2), set(s.eps));
    const FloatVec update = hn::MulAdd(y, set(s.weight_decay), hn::Div(g, denominator));
    const FloatVec nearer = hn::MulAdd(hn::Sub(z, y), set(s.towards_z), y);
    at.put(hn::NegMulAdd(update, set(s.y_rate), nearer), param);
    at.put(hn::NegMulAdd(update, set(s.rate), z), averaged);
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

HWY_EXPORT(ScheduleFreeBlock);

namespace {

// c; 0 while no step had a rate.
double next_weight(float* scalars) {
  const float largest = scalars[kLargestLr] = std::max(scalars[kLargestLr], scalars[kLr]);
  const double weight = double(largest) * double(largest);
  const double sum = double(scalars[kWeightSum]) + double(scalars[kWeightSumRest]) + weight;
  scalars[kWeightSum] = float(sum);
  scalars[kWeightSumRest] = float(sum - double(scalars[kWeightSum]));
  return sum > 0 ? weight / sum : 0;
}

}  // namespace

void schedule_free(const RuleStep& step) {
  const OptimizerRule& rule = step.rule;
  const double beta1 = double(rule.beta1), beta2 = double(rule.beta2);
  const double c = next_weight(step.scalars), correction2 = 1 - std::pow(beta2, double(step.scalars[kSteps]));
  const auto factors_of = [&](double rate) {
    const double lr = rate * double(step.scalars[kLr]);
    return ScheduleFreeFactors{.grad_scale = step.grad_scale,
                               .beta2 = rule.beta2,
                               .one_minus_beta2 = float(1 - beta2),
                               .inverse_correction2 = float(1 / std::sqrt(correction2)),
                               .eps = rule.eps,
                               .weight_decay = rule.weight_decay,
                               .towards_z = float(c),
                               .y_rate = float(lr * (1 - beta1 * (1 - c))),
                               .rate = float(lr)};
  };
  update_elements<2>(step, {}, factors_of,
                     [](const ScheduleFreeFactors& f, float* param, const std::array<float*, 2>& states,
                        const float* grad, int64_t n) {
                       HWY_DYNAMIC_DISPATCH(ScheduleFreeBlock)(f, param, states[0], states[1], grad, n);
                     });
}

}  // namespace wick
#endif  // HWY_ONCE
