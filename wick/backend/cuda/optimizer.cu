// AdamW as torch.optim.AdamW computes it, over all tensors in a few launches.
#include "wick/backend/cuda/map/slots.cuh"
#include "wick/backend/cuda/runtime/any_float.cuh"
#include "wick/backend/cuda/runtime/dense.h"

namespace wick {
namespace {

constexpr int kThreads = 256;

struct Slot {
  float* param;
  const float* grad;
  float *m, *v;
  float* average;  // may be null
  AnyFloats copy;  // data may be null
  int64_t numel;
};

// Shared by a step's kernels, made on the device from its scalars.
struct Factors {
  float grad_scale, decay, one_minus_beta1, beta2, one_minus_beta2, inverse_correction2, eps, step_size, average_share;
  bool update;
};

// The effect of AdamWStep::scales_loss; true where there is an update.
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
__global__ void begin_step(Factors* factors, float* scalars, const AdamWStep step) {
  const float scale = scalars[kGradScale] / scalars[kLossScale], norm = scale * sqrtf(scalars[kSumOfSquares]);
  if (scalars[kHalted] == 0) scalars[kGradNorm] = norm;
  factors->update = next_scalars(scalars, step.scales_loss);
  if (!factors->update) return;
  const bool clip = step.max_grad_norm > 0 && norm > step.max_grad_norm;  // as PyTorch's clip_grad_norm_ does
  const float steps = scalars[kSteps];
  const double beta1 = step.beta1, beta2 = step.beta2, lr = scalars[kLr];
  factors->grad_scale = clip ? scale * (step.max_grad_norm / (norm + 1e-6f)) : scale;
  factors->decay = float(1 - lr * double(step.weight_decay));
  factors->one_minus_beta1 = float(1 - beta1);
  factors->beta2 = step.beta2;
  factors->one_minus_beta2 = float(1 - beta2);
  factors->inverse_correction2 = float(1 / sqrt(1 - pow(beta2, double(steps))));
  factors->eps = step.eps;
  factors->step_size = float(lr / (1 - pow(beta1, double(steps))));
  factors->average_share = 1 - fminf(step.average_decay, (1 + steps) / (10 + steps));
}

__device__ __forceinline__ void update(const Factors& s, float grad, float& param, float& m, float& v) {
  const float g = grad * s.grad_scale;
  m = fmaf(g - m, s.one_minus_beta1, m);
  v = fmaf(g * g, s.one_minus_beta2, v * s.beta2);
  const float denominator = fmaf(sqrtf(v), s.inverse_correction2, s.eps);
  param = param * s.decay - m * s.step_size / denominator;
}

__device__ __forceinline__ void follow(const Factors& s, float& average, float param) {
  average = fmaf(param - average, s.average_share, average);
}

template <class T>
__device__ __forceinline__ void store_copy(void* copy, int64_t i, const float (&param)[4]) {
  Pack<T, 4> pack;
#pragma unroll
  for (int k = 0; k < 4; ++k) pack.value[k] = from_float<T>(param[k]);
  *reinterpret_cast<Pack<T, 4>*>(static_cast<T*>(copy) + i) = pack;
}

__device__ __forceinline__ void update_four(const Factors& s, const Slot& slot, int64_t i) {
  using Four = Pack<float, 4>;
  const Four grad = *reinterpret_cast<const Four*>(slot.grad + i);
  Four param = *reinterpret_cast<const Four*>(slot.param + i);
  Four m = *reinterpret_cast<const Four*>(slot.m + i), v = *reinterpret_cast<const Four*>(slot.v + i);
#pragma unroll
  for (int k = 0; k < 4; ++k) update(s, grad.value[k], param.value[k], m.value[k], v.value[k]);
  *reinterpret_cast<Four*>(slot.param + i) = param;
  *reinterpret_cast<Four*>(slot.m + i) = m;
  *reinterpret_cast<Four*>(slot.v + i) = v;
  if (slot.average) {
    Four average = *reinterpret_cast<const Four*>(slot.average + i);
#pragma unroll
    for (int k = 0; k < 4; ++k) follow(s, average.value[k], param.value[k]);
    *reinterpret_cast<Four*>(slot.average + i) = average;
  }
  if (!slot.copy.data) return;
  if (slot.copy.dtype == DType::bf16)
    store_copy<bf16>(slot.copy.data, i, param.value);
  else if (slot.copy.dtype == DType::f16)
    store_copy<f16>(slot.copy.data, i, param.value);
  else
    store_copy<float>(slot.copy.data, i, param.value);
}

__device__ __forceinline__ void update_one(const Factors& s, const Slot& slot, int64_t i) {
  float param = slot.param[i], m = slot.m[i], v = slot.v[i];
  update(s, slot.grad[i], param, m, v);
  slot.param[i] = param;
  slot.m[i] = m;
  slot.v[i] = v;
  if (slot.average) follow(s, slot.average[i], param);
  if (slot.copy.data) slot.copy.store(i, param);
}

__device__ __forceinline__ bool aligned(const Slot& slot) {
  const auto bits = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return ((bits(slot.param) | bits(slot.grad) | bits(slot.m) | bits(slot.v) | bits(slot.average) |
           bits(slot.copy.data)) &
          15) == 0;
}

__global__ void __launch_bounds__(kThreads)
    adamw_parts(const Factors* factors, const __grid_constant__ SlotTable<Slot> table) {
  const Factors s = *factors;
  if (!s.update) return;
  const auto [slot, begin, end] = part_of(table, blockIdx.x);
  const int64_t whole = aligned(slot) ? end - (end - begin) % 4 : begin;
  for (int64_t i = begin + 4 * threadIdx.x; i < whole; i += 4 * kThreads) update_four(s, slot, i);
  for (int64_t i = whole + threadIdx.x; i < end; i += kThreads) update_one(s, slot, i);
}

}  // namespace

void CudaBackend::adamw(const std::vector<AdamWSlot>& slots, const AdamWStep& step, View scalars) {
  const Scratch factors(*this, sizeof(Factors));
  begin_step<<<1, 1, 0, stream_>>>(factors.as<Factors>(), scalars.as<float>(), step);
  cuda_launched("adamw");
  std::vector<Slot> all;
  all.reserve(slots.size());
  for (const AdamWSlot& slot : slots)
    all.push_back({slot.param.as<float>(), slot.grad.as<const float>(), slot.m.as<float>(), slot.v.as<float>(),
                   slot.average.as<float>(), AnyFloats(slot.copy), slot.param.numel()});
  in_tables(all, [&](const SlotTable<Slot>& table) {
    adamw_parts<<<table.blocks, kThreads, 0, stream_>>>(factors.as<const Factors>(), table);
    cuda_launched("adamw");
  });
}

}  // namespace wick
