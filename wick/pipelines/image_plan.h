// What memory drawing a picture takes, before anything is loaded: a step of it and its decoding run on a backend that
// only counts.
#pragma once

#include <filesystem>
#include <vector>

#include "wick/backend/counting.h"
#include "wick/pipelines/text_to_image.h"

namespace wick {

struct ImagePlan {  // bytes
  DeviceKind device;
  size_t weights, adapter;
  size_t activations;  // what a step or the decoding adds to them at its peak
  size_t taken;        // by the device's Memory at the most, gaps between tensors among it

  size_t total() const { return taken + device.workspace + device.context; }
};

// Of one picture at a time with the model in `folder`, its weights in `dtype`, without its VAE's encoder. The LoRAs are
// read: one that does not fit the model is an Error here.
ImagePlan plan_image(const std::filesystem::path& folder, const ImageRequest& request, DType dtype,
                     const std::vector<LoraFile>& loras, const DeviceKind& device);

}  // namespace wick
