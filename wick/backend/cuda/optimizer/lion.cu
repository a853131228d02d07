// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023): the parameter decays, then moves by the
// rate along the signs of a mean of gradient and momentum. bitsandbytes' Lion8bit is the same.
#include "wick/backend/cuda/optimizer/eight_bits.cuh"

namespace wick {
namespace {

struct Lion {
  static constexpr int kStates = 1;  // m
  static constexpr __device__ bool is_signed(int) { return true; }
  float decay, lr, beta1, one_minus_beta1, beta2, one_minus_beta2;

  __device__ void begin(const OptimizerRule& rule, const float* scalars) {
    lr = scalars[kLr];
    decay = float(1 - double(lr) * double(rule.weight_decay));
    beta1 = rule.beta1;
    one_minus_beta1 = float(1 - double(beta1));
    beta2 = rule.beta2;
    one_minus_beta2 = float(1 - double(beta2));
  }
  __device__ __forceinline__ Lion at(float rate) const {
    Lion slot = *this;
    slot.decay = decay_at(rate, decay);
    slot.lr = lr * rate;
    return slot;
  }
  __device__ __forceinline__ void update(float g, float& param, float (&state)[kStates]) const {
    const float m = state[0], mean = fmaf(m, beta1, g * one_minus_beta1);
    param = param * decay - (mean == 0 ? 0 : copysignf(lr, mean));
    state[0] = fmaf(m, beta2, g * one_minus_beta2);
  }
};

}  // namespace

void on_device::lion(const RuleStep& step) {
  const FactorsOfStep<Lion> factors(step);
  update_elements<Lion>(step, factors);
  update_coded_elements<Lion>(step, factors);
}

}  // namespace wick
