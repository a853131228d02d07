// Optimizer steps over all tensors in a few launches. What all rules share is begin_step() and the walk over slots; a
// rule is a struct (AdamW as torch.optim.AdamW computes it) and a case of CudaBackend::optimizer_step().
#include "wick/backend/cuda/map/slots.cuh"
#include "wick/backend/cuda/runtime/any_float.cuh"
#include "wick/backend/cuda/runtime/dense.h"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kThreads = 256;

template <class Rule>
struct Slot {
  float* param;
  const float* grad;
  float* states[Rule::kStates];
  float* average;  // may be null
  AnyFloats copy;  // data may be null
  int64_t numel;
};

// A rule whose states are f32 in the parameter's shape: factors of its formula, and the formula for one element. A rule
// with other states brings a kernel of its own.
struct AdamW {
  static constexpr int kStates = 2;  // m, v
  float decay, one_minus_beta1, beta2, one_minus_beta2, inverse_correction2, eps, step_size;

  __device__ void begin(const OptimizerRule& rule, double lr, double steps) {
    const double b1 = rule.beta1, b2 = rule.beta2;
    decay = float(1 - lr * double(rule.weight_decay));
    one_minus_beta1 = float(1 - b1);
    beta2 = rule.beta2;
    one_minus_beta2 = float(1 - b2);
    inverse_correction2 = float(1 / sqrt(1 - pow(b2, steps)));
    eps = rule.eps;
    step_size = float(lr / (1 - pow(b1, steps)));
  }
  __device__ __forceinline__ void update(float g, float& param, float (&state)[kStates]) const {
    float &m = state[0], &v = state[1];
    m = fmaf(g - m, one_minus_beta1, m);
    v = fmaf(g * g, one_minus_beta2, v * beta2);
    const float denominator = fmaf(sqrtf(v), inverse_correction2, eps);
    param = param * decay - m * step_size / denominator;
  }
};

// Shared by a step's kernels, made on the device from its scalars.
template <class Rule>
struct Factors {
  Rule rule;
  float grad_scale, average_share;
  bool update;
};

// The scalars after a step (OptimizerStep::scales_loss); true where there is an update.
__device__ bool next_scalars(float* scalars, bool scales_loss) {
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

// Runs in one thread, before the update's kernels: it changes the scalars.
template <class Rule>
__global__ void begin_step(Factors<Rule>* factors, float* scalars, const OptimizerStep step) {
  const float scale = scalars[kGradScale] / scalars[kLossScale], norm = scale * sqrtf(scalars[kSumOfSquares]);
  if (scalars[kHalted] == 0) scalars[kGradNorm] = norm;
  factors->update = next_scalars(scalars, step.scales_loss);
  if (!factors->update) return;
  const bool clip = step.max_grad_norm > 0 && norm > step.max_grad_norm;  // as PyTorch's clip_grad_norm_ does
  const float steps = scalars[kSteps];
  factors->grad_scale = clip ? scale * (step.max_grad_norm / (norm + 1e-6f)) : scale;
  factors->rule.begin(step.rule, scalars[kLr], steps);
  factors->average_share = 1 - fminf(step.average_decay, (1 + steps) / (10 + steps));
}

template <class T, int N>
__device__ __forceinline__ void store_copy(void* copy, int64_t i, const float (&param)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int k = 0; k < N; ++k) pack.value[k] = from_float<T>(param[k]);
  *reinterpret_cast<Pack<T, N>*>(static_cast<T*>(copy) + i) = pack;
}

// N elements from i on.
template <int N, class Rule>
__device__ __forceinline__ void update(const Factors<Rule>& s, const Slot<Rule>& slot, int64_t i) {
  using Some = Pack<float, N>;
  const Some grad = *reinterpret_cast<const Some*>(slot.grad + i);
  Some param = *reinterpret_cast<const Some*>(slot.param + i), states[Rule::kStates];
  for (int n = 0; n < Rule::kStates; ++n) states[n] = *reinterpret_cast<const Some*>(slot.states[n] + i);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    float state[Rule::kStates];
    for (int n = 0; n < Rule::kStates; ++n) state[n] = states[n].value[k];
    s.rule.update(grad.value[k] * s.grad_scale, param.value[k], state);
    for (int n = 0; n < Rule::kStates; ++n) states[n].value[k] = state[n];
  }
  *reinterpret_cast<Some*>(slot.param + i) = param;
  for (int n = 0; n < Rule::kStates; ++n) *reinterpret_cast<Some*>(slot.states[n] + i) = states[n];
  if (slot.average) {
    Some average = *reinterpret_cast<const Some*>(slot.average + i);
#pragma unroll
    for (int k = 0; k < N; ++k)
      average.value[k] = fmaf(param.value[k] - average.value[k], s.average_share, average.value[k]);
    *reinterpret_cast<Some*>(slot.average + i) = average;
  }
  if (!slot.copy.data) return;
  if (slot.copy.dtype == DType::bf16)
    store_copy<bf16>(slot.copy.data, i, param.value);
  else if (slot.copy.dtype == DType::f16)
    store_copy<f16>(slot.copy.data, i, param.value);
  else
    store_copy<float>(slot.copy.data, i, param.value);
}

template <class Rule>
__device__ __forceinline__ bool aligned(const Slot<Rule>& slot) {
  const auto bits = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  uintptr_t all = bits(slot.param) | bits(slot.grad) | bits(slot.average) | bits(slot.copy.data);
  for (int n = 0; n < Rule::kStates; ++n) all |= bits(slot.states[n]);
  return (all & 15) == 0;
}

template <class Rule>
__global__ void __launch_bounds__(kThreads)
    update_parts(const Factors<Rule>* factors, const __grid_constant__ SlotTable<Slot<Rule>> table) {
  const Factors<Rule> s = *factors;
  if (!s.update) return;
  const auto [slot, begin, end] = part_of(table, blockIdx.x);
  const int64_t whole = aligned(slot) ? end - (end - begin) % 4 : begin;
  for (int64_t i = begin + 4 * threadIdx.x; i < whole; i += 4 * kThreads) update<4>(s, slot, i);
  for (int64_t i = whole + threadIdx.x; i < end; i += kThreads) update<1>(s, slot, i);
}

template <class Rule>
void run(CudaBackend& cuda, const std::vector<OptimizerSlot>& slots, const OptimizerStep& step, float* scalars) {
  const Scratch factors(cuda, sizeof(Factors<Rule>));
  launch("optimizer_step", cuda.stream(), {1, 1}, begin_step<Rule>, factors.as<Factors<Rule>>(), scalars, step);
  std::vector<Slot<Rule>> all;
  all.reserve(slots.size());
  for (const OptimizerSlot& slot : slots) {
    Slot<Rule>& one = all.emplace_back(Slot<Rule>{slot.param.as<float>(),
                                                  slot.grad.as<const float>(),
                                                  {},
                                                  slot.average.as<float>(),
                                                  AnyFloats(slot.copy),
                                                  slot.param.numel()});
    for (int n = 0; n < Rule::kStates; ++n) one.states[n] = slot.states[size_t(n)].as<float>();
  }
  in_tables(all, [&](const SlotTable<Slot<Rule>>& table) {
    launch("optimizer_step", cuda.stream(), {table.blocks, kThreads}, update_parts<Rule>,
           factors.as<const Factors<Rule>>(), table);
  });
}

}  // namespace

void CudaBackend::optimizer_step(const std::vector<OptimizerSlot>& slots, const OptimizerStep& step, View scalars) {
  switch (step.rule.kind) {
    case OptimizerKind::adamw:
      return run<AdamW>(*this, slots, step, scalars.as<float>());
  }
}

}  // namespace wick
