// Schedule-free AdamW (Defazio et al., "The Road Less Scheduled", 2024) as AdamWScheduleFree of schedulefree computes
// it: the average x moves towards z by c = w / (sum of all w), where w is a step's weight (ScheduleFreeRule). It is not
// kept: y, the parameter, is beta1 x + (1 - beta1) z. RAdamScheduleFree is the same at a rectified rate.
#include "wick/backend/cuda/optimizer/step.cuh"

namespace wick {
namespace {

struct ScheduleFree {
  static constexpr int kStates = 2;  // v, z
  float beta2, one_minus_beta2, inverse_correction2, eps, weight_decay;
  float towards_z;     // c
  float y_rate, rate;  // of y and z

  __device__ void begin(const OptimizerRule& rule, float* scalars) {
    const double b1 = rule.beta1, b2 = rule.beta2, t = scalars[kSteps];
    rate = scalars[kLr];
    if (rule.kind == OptimizerKind::radam_schedule_free) rate = float(rectification(b2, t) * double(rate));
    const double c = next_weight(rule.schedule_free, rate, scalars), lr = rate;
    beta2 = rule.beta2;
    one_minus_beta2 = float(1 - b2);
    inverse_correction2 = float(1 / sqrt(1 - pow(b2, t)));
    eps = rule.eps;
    weight_decay = rule.weight_decay;
    towards_z = float(c);
    y_rate = float(lr * (1 - b1 * (1 - c)));
  }
  // RAdam's factor of the rate in step t (Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", 2020,
  // algorithm 2); 0 where its average is of four gradients or fewer.
  static __device__ double rectification(double b2, double t) {
    const double power = pow(b2, t), most = 2 / (1 - b2) - 1, length = most - 2 * t * power / (1 - power);
    if (length <= 4) return 0;
    return sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
  }
  static __device__ double weight_of(const ScheduleFreeRule& rule, double largest_lr, double step) {
    const double power = rule.weight_lr_power;
    const double of_lr = power == 2 ? largest_lr * largest_lr : pow(largest_lr, power);
    return rule.r == 0 ? of_lr : pow(step, rule.r) * of_lr;
  }
  // c; 0 while no step had a weight.
  static __device__ double next_weight(const ScheduleFreeRule& rule, float lr, float* scalars) {
    const float largest = scalars[kLargestLr] = fmaxf(scalars[kLargestLr], lr);
    const double weight = weight_of(rule, double(largest), double(scalars[kSteps]));
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
