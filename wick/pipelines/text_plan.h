// The memory for text generation, before anything is loaded: the model reads a prompt on a backend that counts.
#pragma once

#include "wick/backend/counting.h"
#include "wick/models/llama_config.h"

namespace wick {

struct TextPlan {  // bytes
  DeviceKind device;
  size_t weights, cache;
  size_t activations;  // the prefill of a long prompt adds these at its peak
  size_t taken;        // the peak of the device's Memory, gaps between tensors included

  size_t total() const { return taken + device.workspace + device.context; }
};

// For one sequence of at most `context` tokens.
TextPlan plan_text(const LlamaConfig& config, DType dtype, int64_t context, const DeviceKind& device);

}  // namespace wick
