// Schedule-free AdamW (Defazio et al., "The Road Less Scheduled", 2024) as AdamWScheduleFree of schedulefree computes
// it: the average x moves towards z by c = w / (sum of all w), where w is a step's weight (ScheduleFreeRule). It is not
// kept: y, the parameter, is beta1 x + (1 - beta1) z. RAdamScheduleFree is the same at a rectified rate.
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

// RAdam's factor of the rate in step t (Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", 2020,
// algorithm 2); 0 where its average is of four gradients or fewer.
double rectification(double beta2, double t) {
  const double power = std::pow(beta2, t), most = 2 / (1 - beta2) - 1, length = most - 2 * t * power / (1 - power);
  if (length <= 4) return 0;
  return std::sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
}

double weight_of(const ScheduleFreeRule& rule, double largest_lr, double step) {
  const double power = rule.weight_lr_power;
  const double of_lr = power == 2 ? largest_lr * largest_lr : std::pow(largest_lr, power);
  return rule.r == 0 ? of_lr : std::pow(step, rule.r) * of_lr;
}

// c; 0 while no step had a weight.
double next_weight(const ScheduleFreeRule& rule, float lr, float* scalars) {
  const float largest = scalars[kLargestLr] = std::max(scalars[kLargestLr], lr);
  const double weight = weight_of(rule, double(largest), double(scalars[kSteps]));
  const double sum = double(scalars[kWeightSum]) + double(scalars[kWeightSumRest]) + weight;
  scalars[kWeightSum] = float(sum);
  scalars[kWeightSumRest] = float(sum - double(scalars[kWeightSum]));
  return sum > 0 ? weight / sum : 0;
}

}  // namespace

void schedule_free(const RuleStep& step) {
  const OptimizerRule& rule = step.rule;
  const double beta1 = double(rule.beta1), beta2 = double(rule.beta2), t = double(step.scalars[kSteps]);
  const double share = rule.kind == OptimizerKind::radam_schedule_free ? rectification(beta2, t) : 1;
  const float step_lr = float(share * double(step.scalars[kLr]));
  const double c = next_weight(rule.schedule_free, step_lr, step.scalars), correction2 = 1 - std::pow(beta2, t);
  const auto factors_of = [&](double rate) {
    const double lr = rate * double(step_lr);
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
