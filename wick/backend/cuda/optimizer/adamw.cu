// AdamW as torch.optim.AdamW computes it; with states in 8 bits as bitsandbytes does, where the parameter decays after
// the update instead of before.
#include "wick/backend/cuda/optimizer/eight_bits.cuh"

namespace wick {
namespace {

struct AdamW {
  static constexpr int kStates = 2;  // m, v
  static constexpr __device__ bool is_signed(int state) { return state == 0; }
  float decay, one_minus_beta1, beta2, one_minus_beta2, inverse_correction2, eps, step_size;
  bool decays_after;

  __device__ void begin(const OptimizerRule& rule, const float* scalars) {
    const double b1 = rule.beta1, b2 = rule.beta2, lr = scalars[kLr], steps = scalars[kSteps];
    decay = float(1 - lr * double(rule.weight_decay));
    one_minus_beta1 = float(1 - b1);
    beta2 = rule.beta2;
    one_minus_beta2 = float(1 - b2);
    inverse_correction2 = float(1 / sqrt(1 - pow(b2, steps)));
    eps = rule.eps;
    step_size = float(lr / (1 - pow(b1, steps)));
    decays_after = rule.kind == OptimizerKind::adamw8bit;
  }
  __device__ __forceinline__ AdamW at(float rate) const {
    AdamW slot = *this;
    slot.decay = decay_at(rate, decay);
    slot.step_size = step_size * rate * (decays_after ? slot.decay : 1);
    return slot;
  }
  __device__ __forceinline__ void update(float g, float& param, float (&state)[kStates]) const {
    float &m = state[0], &v = state[1];
    m = fmaf(g - m, one_minus_beta1, m);
    v = fmaf(g * g, one_minus_beta2, v * beta2);
    const float denominator = fmaf(sqrtf(v), inverse_correction2, eps);
    param = param * decay - m * step_size / denominator;
  }
};

}  // namespace

void on_device::adamw(const RuleStep& step) {
  const FactorsOfStep<AdamW> factors(step);
  update_elements<AdamW>(step, factors);
  update_coded_elements<AdamW>(step, factors);
}

}  // namespace wick
