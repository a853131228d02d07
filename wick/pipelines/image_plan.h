// The memory that drawing a picture takes, before anything is loaded: a step of it and its decoding run on a backend
// that only counts.
#pragma once

#include <vector>

#include "wick/backend/counting.h"
#include "wick/pipelines/text_to_image.h"

namespace wick {

struct ImagePlan {  // bytes
  DeviceKind device;
  size_t weights, adapter;
  size_t activations;  // a step or the decoding adds these at its peak
  size_t taken;        // by the device's Memory at the most, gaps between tensors among it

  size_t total() const { return taken + device.workspace + device.context; }
};

// For one picture at a time, weights in `dtype`. The LoRAs are read: one that does not fit the model is an Error here.
ImagePlan plan_image(const Checkpoint& checkpoint, const ImageRequest& request, DType dtype,
                     const std::vector<LoraFile>& loras, const DeviceKind& device);

}  // namespace wick
