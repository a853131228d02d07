// What the rules of optimizers share on the CPU. Each has a file with its formula; optimizer.cpp has the part that is
// the same for all of them, and calls them.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <vector>

#include "wick/backend/backend.h"
#include "wick/backend/cpu/optimizer/eight_bits.h"
#include "wick/backend/cpu/parallel.h"

namespace wick {

struct RuleStep {
  const std::vector<OptimizerSlot>& slots;
  const OptimizerRule& rule;
  float* scalars;    // kSteps counts this step
  float grad_scale;  // multiplies the gradients, clipping included
};

void adamw(const RuleStep& step);  // with states in f32 and in 8 bits
void lion(const RuleStep& step);   // with states in f32 and in 8 bits
void adafactor(const RuleStep& step);
void prodigy(const RuleStep& step);
void schedule_free(const RuleStep& step);

// Parts of all slots that threads share among themselves: whole blocks of 8-bit states.
struct SlotRange {
  const OptimizerSlot* slot;
  int64_t first, count;  // elements

  float* of(const View& v) const { return v.as<float>() + first; }
};

inline std::vector<SlotRange> parts_of(const std::vector<OptimizerSlot>& slots) {
  constexpr int64_t kPart = 1 << 13;
  static_assert(kPart % k8BitBlock == 0);
  std::vector<SlotRange> parts;
  for (const OptimizerSlot& slot : slots) {
    const int64_t n = slot.param.numel();
    assert(slot.grad.numel() == n);
    for (int64_t i = 0; i < n; i += kPart) parts.push_back({&slot, i, std::min(n - i, kPart)});
  }
  return parts;
}

template <class F>
void for_parts(const std::vector<SlotRange>& parts, const F& f) {
  int64_t elements = 0;
  for (const SlotRange& part : parts) elements += part.count;
  parallel_each(int64_t(parts.size()), elements, [&](int64_t i) { f(i, parts[size_t(i)]); });
}

// Updates elements one by one: update(factors, param, states, grad, n) has arrays of n f32, and what factors_of(rate)
// makes for the slot's rate. Of `maps`, one a state, states in 8 bits are decoded before it and encoded after it.
template <size_t N, class FactorsOf, class Update>
void update_elements(const RuleStep& step, const std::array<const DynamicMap*, N>& maps, const FactorsOf& factors_of,
                     const Update& update) {
  for_parts(parts_of(step.slots), [&](int64_t, const SlotRange& part) {
    const OptimizerSlot& slot = *part.slot;
    const auto factors = factors_of(double(slot.rate));
    std::array<float*, N> states;
    if (slot.states[0].dtype == DType::f32) {
      for (size_t s = 0; s < N; ++s) states[s] = part.of(slot.states[s]);
      return update(factors, part.of(slot.param), states, part.of(slot.grad), part.count);
    }
    std::array<std::array<float, k8BitBlock>, N> values;
    for (int64_t i = 0; i < part.count; i += k8BitBlock) {
      const int64_t first = part.first + i, n = std::min(part.count - i, k8BitBlock);
      const auto coded = [&](size_t s) {
        return CodedBlock{slot.states[s].as<uint8_t>() + first, slot.states[N + s].as<float>() + first / k8BitBlock, n};
      };
      for (size_t s = 0; s < N; ++s) coded(s).decode(*maps[s], states[s] = values[s].data());
      update(factors, slot.param.as<float>() + first, states, slot.grad.as<const float>() + first, n);
      for (size_t s = 0; s < N; ++s) coded(s).encode(*maps[s], values[s].data());
    }
  });
}

}  // namespace wick
