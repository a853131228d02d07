// Schedule-free AdamW (Defazio et al., "The Road Less Scheduled", 2024) as AdamWScheduleFree of schedulefree computes
// it, with r = 0 and weight_lr_power = 2: the average x moves towards z by c = w / (sum of all w), w = (largest rate)².
// It is not kept: y, the parameter, is beta1 x + (1 - beta1) z.
#include "wick/backend/cuda/optimizer/step.cuh"

namespace wick {
namespace {

struct ScheduleFree {
  static constexpr int kStates = 2;  // v, z
  float beta2, one_minus_beta2, inverse_correction2, eps, weight_decay;
  float towards_z;     // c
  float y_rate, rate;  // of y and z

  __device__ void begin(const OptimizerRule& rule, float* scalars) {
    const double b1 = rule.beta1, b2 = rule.beta2, c = next_weight(scalars), lr = scalars[kLr];
    beta2 = rule.beta2;
    one_minus_beta2 = float(1 - b2);
    inverse_correction2 = float(1 / sqrt(1 - pow(b2, double(scalars[kSteps]))));
    eps = rule.eps;
    weight_decay = rule.weight_decay;
    towards_z = float(c);
    y_rate = float(lr * (1 - b1 * (1 - c)));
    rate = scalars[kLr];
  }
  // c; 0 while no step had a rate.
  static __device__ double next_weight(float* scalars) {
    const float largest = scalars[kLargestLr] = fmaxf(scalars[kLargestLr], scalars[kLr]);
    const double weight = double(largest) * double(largest);
    const double sum = double(scalars[kWeightSum]) + double(scalars[kWeightSumRest]) + weight;
    scalars[kWeightSum] = float(sum);
    scalars[kWeightSumRest] = float(sum - double(scalars[kWeightSum]));
    return sum > 0 ? weight / sum : 0;
  }
  __device__ __forceinline__ ScheduleFree at(float share) const {
    ScheduleFree slot = *this;
    slot.y_rate *= share;
    slot.rate *= share;
    return slot;
  }
  __device__ __forceinline__ void update(float g, float& y, float (&state)[kStates]) const {
    float &v = state[0], &z = state[1];
    v = fmaf(g * g, one_minus_beta2, v * beta2);
    const float step = fmaf(y, weight_decay, g / fmaf(sqrtf(v), inverse_correction2, eps));
    y = fmaf(-step, y_rate, fmaf(z - y, towards_z, y));
    z = fmaf(-step, rate, z);
  }
};

}  // namespace

void on_device::schedule_free(const RuleStep& step) {
  const FactorsOfStep<ScheduleFree> factors(step);
  update_elements<ScheduleFree>(step, factors);
}

}  // namespace wick
