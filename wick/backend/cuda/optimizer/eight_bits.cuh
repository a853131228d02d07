// Rules that update elements one by one, with states in 8 bits (OptimizerKind): a warp decodes the states of 256
// elements, updates all, and encodes them by the largest of each state.
#pragma once

#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/optimizer/step.cuh"
#include "wick/core/dynamic_map.h"

namespace wick {
inline namespace on_device {

template <int kStates>
struct CodedSlot {
  Destination to;
  const float* grad;
  uint8_t* codes[kStates];
  float* absmax[kStates];
  int64_t numel;

  explicit CodedSlot(const OptimizerSlot& slot)
      : to(slot), grad(slot.grad.as<const float>()), numel(slot.param.numel()) {
    for (int n = 0; n < kStates; ++n) {
      codes[n] = slot.states[size_t(n)].as<uint8_t>();
      absmax[n] = slot.states[size_t(kStates + n)].as<float>();
    }
  }
  CodedSlot() = default;
};

static __constant__ DynamicMap kMaps[2] = {kSignedMap, kUnsignedMap};

// A block's copy of a map, in shared memory.
struct SharedMap {
  float values[256], thresholds[255];

  __device__ void load(bool is_signed) {
    for (int i = threadIdx.x; i < 256; i += kOptimizerThreads) values[i] = kMaps[!is_signed].values[i];
    for (int i = threadIdx.x; i < 255; i += kOptimizerThreads) thresholds[i] = kMaps[!is_signed].thresholds[i];
  }
  // The nearest value's code, the number of thresholds below x / largest; a negative x that would become zero stays
  // negative.
  __device__ __forceinline__ uint8_t encode(float x, float largest) const {
    const float share = largest > 0 ? x / largest : 0;
    int code = 0;
#pragma unroll
    for (int step = 128; step > 0; step /= 2)
      if (share > thresholds[code + step - 1]) code += step;
    return uint8_t(code - (x < 0 && values[code] == 0 && code > 0));
  }
};

// A Rule's is_signed(n) says by which map state n is coded.
template <class Rule>
__global__ void __launch_bounds__(kOptimizerThreads)
    update_coded(const Factors<Rule>* factors, const __grid_constant__ SlotTable<CodedSlot<Rule::kStates>> table) {
  constexpr int kStates = Rule::kStates, kEach = int(k8BitBlock / 32), kWarps = kOptimizerThreads / 32;
  Factors<Rule> s = *factors;
  if (!s.update) return;
  __shared__ SharedMap maps[kStates];
  for (int n = 0; n < kStates; ++n) maps[n].load(Rule::is_signed(n));
  __syncthreads();
  const auto [slot, begin, end] = part_of(table, blockIdx.x);
  s.rule = s.rule.at(slot.to.rate);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t first = begin + k8BitBlock * warp; first < end; first += k8BitBlock * kWarps) {
    float values[kEach][kStates], absmax[kStates], largest[kStates] = {};
    for (int n = 0; n < kStates; ++n) absmax[n] = slot.absmax[n][first / k8BitBlock];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int64_t i = first + lane + 32 * k;
      if (i >= end) continue;
      float param = slot.to.param[i];
      for (int n = 0; n < kStates; ++n) values[k][n] = maps[n].values[slot.codes[n][i]] * absmax[n];
      s.rule.update(slot.grad[i] * s.grad_scale, param, values[k]);
      for (int n = 0; n < kStates; ++n) largest[n] = fmaxf(largest[n], fabsf(values[k][n]));
      slot.to.put(i, param, s.average_share);
    }
    for (int n = 0; n < kStates; ++n) {
      largest[n] = warp_reduce<Max>(largest[n]);  // after which every lane has read absmax
      if (lane == 0) slot.absmax[n][first / k8BitBlock] = largest[n];
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int64_t i = first + lane + 32 * k;
      if (i >= end) continue;
      for (int n = 0; n < kStates; ++n) slot.codes[n][i] = maps[n].encode(values[k][n], largest[n]);
    }
  }
}

// Slots whose states are in 8 bits.
template <class Rule>
void update_coded_elements(const RuleStep& step, const Factors<Rule>* factors) {
  using Slot = CodedSlot<Rule::kStates>;
  std::vector<Slot> slots;
  for (const OptimizerSlot& slot : step.slots)
    if (slot.states[0].dtype == DType::u8) slots.emplace_back(slot);
  in_tables(slots, [&](const SlotTable<Slot>& table) {
    launch("optimizer_step", step.cuda.stream(), {table.blocks, kOptimizerThreads}, update_coded<Rule>, factors, table);
  });
}

}  // namespace on_device
}  // namespace wick
