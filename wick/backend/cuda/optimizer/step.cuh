// What the rules of optimizers share on a device: the beginning of a step, where its scalars move on and its factors
// are made; where updated parameters go; and the walk over slots whose elements are updated one by one.
#pragma once

#include "wick/backend/cuda/map/slots.cuh"
#include "wick/backend/cuda/optimizer/rules.h"
#include "wick/backend/cuda/runtime/any_float.cuh"
#include "wick/backend/cuda/runtime/dense.h"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
inline namespace on_device {

inline constexpr int kOptimizerThreads = 256;

// Made on the device from the step's scalars. A Rule has begin(rule, scalars), which makes its factors and moves its
// own scalars on, before the update's kernels.
template <class Rule>
struct Factors {
  Rule rule;
  float grad_scale, average_share;
  bool update;
};

// The scalars after a step (OptimizerStep::scales_loss); true where there is an update.
inline __device__ bool next_scalars(float* scalars, bool scales_loss) {
  constexpr float kPatience = 2000, kLargest = 65536;
  if (scalars[kHalted] != 0) return false;
  const bool finite = isfinite(scalars[kGradNorm]);
  if (!finite) {
    scalars[kGoodSteps] = 0;
    if (scales_loss && scalars[kLossScale] > 1)
      scalars[kLossScale] /= 2;
    else
      scalars[kHalted] = 1;
    return false;
  }
  scalars[kSteps] += 1;
  if (scales_loss && ++scalars[kGoodSteps] >= kPatience) {
    scalars[kGoodSteps] = 0;
    scalars[kLossScale] = fminf(2 * scalars[kLossScale], kLargest);
  }
  return true;
}

// By which the averages decay in the step of this number.
inline __device__ float average_decay(const OptimizerStep& step, float t) {
  const float most = step.average_warmup == AverageWarmup::updates ? (1 + t) / (10 + t)
                     : step.average_warmup == AverageWarmup::power ? 1 - powf(t, -2.0f / 3)
                                                                   : 1;
  return fminf(step.average_decay, most);
}

// Runs in one thread.
template <class Rule>
__global__ void begin_step(Factors<Rule>* factors, float* scalars, const OptimizerStep step) {
  const float scale = scalars[kGradScale] / scalars[kLossScale], norm = scale * sqrtf(scalars[kSumOfSquares]);
  if (scalars[kHalted] == 0) scalars[kGradNorm] = norm;
  factors->update = next_scalars(scalars, step.scales_loss);
  if (!factors->update) return;
  const bool clip = step.max_grad_norm > 0 && norm > step.max_grad_norm;  // as PyTorch's clip_grad_norm_ does
  factors->grad_scale = clip ? scale * (step.max_grad_norm / (norm + 1e-6f)) : scale;
  factors->rule.begin(step.rule, scalars);
  factors->average_share = 1 - average_decay(step, scalars[kSteps]);
}

template <class Rule>
class FactorsOfStep {
 public:
  explicit FactorsOfStep(const RuleStep& s) : memory_(s.cuda, sizeof(Factors<Rule>)) {
    launch("optimizer_step", s.cuda.stream(), {1, 1}, begin_step<Rule>, get(), s.scalars, s.step);
  }
  Factors<Rule>* get() const { return memory_.template as<Factors<Rule>>(); }
  operator const Factors<Rule>*() const { return get(); }

 private:
  Scratch memory_;
};

// Where an updated parameter goes, and its share of the learning rate.
struct Destination {
  float rate;
  float* param;
  float* average;  // may be null
  AnyFloats copy;  // data may be null

  explicit Destination(const OptimizerSlot& slot)
      : rate(slot.rate), param(slot.param.as<float>()), average(slot.average.as<float>()), copy(slot.copy) {}
  Destination() = default;

  template <class T, int N>
  __device__ __forceinline__ void put_copy(int64_t i, const Pack<float, N>& values) const {
    Pack<T, N> pack;
#pragma unroll
    for (int k = 0; k < N; ++k) pack.value[k] = from_float<T>(values.value[k]);
    *reinterpret_cast<Pack<T, N>*>(static_cast<T*>(copy.data) + i) = pack;
  }

  // N elements from i on.
  template <int N>
  __device__ __forceinline__ void put(int64_t i, const Pack<float, N>& values, float average_share) const {
    using Some = Pack<float, N>;
    *reinterpret_cast<Some*>(param + i) = values;
    if (average) {
      Some mean = *reinterpret_cast<const Some*>(average + i);
#pragma unroll
      for (int k = 0; k < N; ++k) mean.value[k] = fmaf(values.value[k] - mean.value[k], average_share, mean.value[k]);
      *reinterpret_cast<Some*>(average + i) = mean;
    }
    if (!copy.data) return;
    if (copy.dtype == DType::bf16)
      put_copy<bf16>(i, values);
    else if (copy.dtype == DType::f16)
      put_copy<f16>(i, values);
    else
      put_copy<float>(i, values);
  }
  __device__ __forceinline__ void put(int64_t i, float value, float average_share) const {
    put<1>(i, Pack<float, 1>{{value}}, average_share);
  }
};

// What is left of a parameter by weight decay, at a share of the rate: `decay` to the bit where that is 1.
__device__ __forceinline__ float decay_at(float rate, float decay) { return 1 - rate * (1 - decay); }

// A rule that updates elements one by one also has kStates, the number of its states of the parameter's shape,
// at(rate), the rule at a share of the learning rate, and update(gradient, param, state[kStates]).
template <int kStates>
struct ElementSlot {
  Destination to;
  const float* grad;
  float* states[kStates];
  int64_t numel;

  explicit ElementSlot(const OptimizerSlot& slot)
      : to(slot), grad(slot.grad.as<const float>()), numel(slot.param.numel()) {
    for (int n = 0; n < kStates; ++n) states[n] = slot.states[size_t(n)].as<float>();
  }
  ElementSlot() = default;
};

// N elements from i on.
template <int N, class Rule>
__device__ __forceinline__ void update(const Factors<Rule>& s, const ElementSlot<Rule::kStates>& slot, int64_t i) {
  using Some = Pack<float, N>;
  const Some grad = *reinterpret_cast<const Some*>(slot.grad + i);
  Some param = *reinterpret_cast<const Some*>(slot.to.param + i), states[Rule::kStates];
  for (int n = 0; n < Rule::kStates; ++n) states[n] = *reinterpret_cast<const Some*>(slot.states[n] + i);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    float state[Rule::kStates];
    for (int n = 0; n < Rule::kStates; ++n) state[n] = states[n].value[k];
    s.rule.update(grad.value[k] * s.grad_scale, param.value[k], state);
    for (int n = 0; n < Rule::kStates; ++n) states[n].value[k] = state[n];
  }
  for (int n = 0; n < Rule::kStates; ++n) *reinterpret_cast<Some*>(slot.states[n] + i) = states[n];
  slot.to.template put<N>(i, param, s.average_share);
}

template <int kStates>
__device__ __forceinline__ bool is_aligned(const ElementSlot<kStates>& slot) {
  const auto bits = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  uintptr_t all = bits(slot.to.param) | bits(slot.grad) | bits(slot.to.average) | bits(slot.to.copy.data);
  for (int n = 0; n < kStates; ++n) all |= bits(slot.states[n]);
  return (all & 15) == 0;
}

template <class Rule>
__global__ void __launch_bounds__(kOptimizerThreads)
    update_parts(const Factors<Rule>* factors, const __grid_constant__ SlotTable<ElementSlot<Rule::kStates>> table) {
  Factors<Rule> s = *factors;
  if (!s.update) return;
  const auto [slot, begin, end] = part_of(table, blockIdx.x);
  s.rule = s.rule.at(slot.to.rate);
  const int64_t whole = is_aligned(slot) ? end - (end - begin) % 4 : begin;
  for (int64_t i = begin + 4 * threadIdx.x; i < whole; i += 4 * kOptimizerThreads) update<4>(s, slot, i);
  for (int64_t i = whole + threadIdx.x; i < end; i += kOptimizerThreads) update<1>(s, slot, i);
}

// Slots whose states are in f32.
template <class Rule>
void update_elements(const RuleStep& step, const Factors<Rule>* factors) {
  using Slot = ElementSlot<Rule::kStates>;
  std::vector<Slot> slots;
  for (const OptimizerSlot& slot : step.slots)
    if (slot.states[0].dtype == DType::f32) slots.emplace_back(slot);
  in_tables(slots, [&](const SlotTable<Slot>& table) {
    launch("optimizer_step", step.cuda.stream(), {table.blocks, kOptimizerThreads}, update_parts<Rule>, factors, table);
  });
}

}  // namespace on_device
}  // namespace wick
