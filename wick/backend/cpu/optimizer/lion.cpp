// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023): the parameter decays, then moves by the
// rate along the signs of a mean of gradient and momentum. bitsandbytes' Lion8bit is the same.
#include "wick/backend/cpu/optimizer/rules.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/optimizer/lion.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

#ifndef WICK_BACKEND_CPU_OPTIMIZER_LION_FACTORS
#define WICK_BACKEND_CPU_OPTIMIZER_LION_FACTORS
namespace wick {
namespace {

struct LionFactors {
  float grad_scale, decay, lr, beta1, one_minus_beta1, beta2, one_minus_beta2;
};

}  // namespace
}  // namespace wick
#endif

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

void LionBlock(const LionFactors& s, float* param, float* m, const float* grad, int64_t n) {
  for_columns(n, [&](auto at) HWY_ATTR {
    const FloatVec g = hn::Mul(at.of(grad), set(s.grad_scale)), old = at.of(m);
    const FloatVec mean = hn::MulAdd(old, set(s.beta1), hn::Mul(g, set(s.one_minus_beta1)));
    const FloatVec rate = hn::IfThenZeroElse(hn::Eq(mean, set(0)), hn::CopySign(set(s.lr), mean));
    at.put(hn::Sub(hn::Mul(at.of(param), set(s.decay)), rate), param);
    at.put(hn::MulAdd(old, set(s.beta2), hn::Mul(g, set(s.one_minus_beta2))), m);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick {

HWY_EXPORT(LionBlock);

void lion(const RuleStep& step) {
  const OptimizerRule& rule = step.rule;
  const double beta1 = double(rule.beta1), beta2 = double(rule.beta2);
  const auto factors_of = [&](double rate) {
    const double lr = rate * double(step.scalars[kLr]);
    return LionFactors{.grad_scale = step.grad_scale,
                       .decay = float(1 - lr * double(rule.weight_decay)),
                       .lr = float(lr),
                       .beta1 = rule.beta1,
                       .one_minus_beta1 = float(1 - beta1),
                       .beta2 = rule.beta2,
                       .one_minus_beta2 = float(1 - beta2)};
  };
  update_elements<1>(
      step, {&kSignedMap}, factors_of,
      [](const LionFactors& f, float* param, const std::array<float*, 1>& states, const float* grad, int64_t n) {
        HWY_DYNAMIC_DISPATCH(LionBlock)
        (f, param, states[0], grad, n);
      });
}

}  // namespace wick
#endif  // HWY_ONCE
