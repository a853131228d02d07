// The rules of optimizers on a device: each has a file with its formula. step.cuh has the part that all share.
#pragma once

#include "wick/backend/cuda/cuda.h"

namespace wick {
inline namespace on_device {  // the CPU has functions of these names, and a program may hold both

struct RuleStep {
  CudaBackend& cuda;
  const std::vector<OptimizerSlot>& slots;
  const OptimizerStep& step;
  float* scalars;
};

void adamw(const RuleStep& step);  // with states in f32 and in 8 bits
void lion(const RuleStep& step);   // with states in f32 and in 8 bits
void adafactor(const RuleStep& step);
void prodigy(const RuleStep& step);
void schedule_free(const RuleStep& step);

}  // namespace on_device
}  // namespace wick
