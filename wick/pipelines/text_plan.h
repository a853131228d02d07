// What memory text generation takes, before anything is loaded: the model reads a prompt on a backend that only counts.
#pragma once

#include "wick/backend/counting.h"
#include "wick/models/llama_config.h"

namespace wick {

struct TextPlan {  // bytes
  DeviceKind device;
  size_t weights, cache;
  size_t activations;  // what reading a long prompt adds to them at its peak
  size_t taken;        // by the device's Memory at the most, gaps between tensors among it

  size_t total() const { return taken + device.workspace + device.context; }
};

// Of one sequence of at most `context` tokens.
TextPlan plan_text(const LlamaConfig& config, DType dtype, int64_t context, const DeviceKind& device);

}  // namespace wick
