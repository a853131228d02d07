// What a LoRA file says about itself, in the keys that ComfyUI's and A1111's users know: kohya's ss_*, and modelspec.*
// (Stability-AI/ModelSpec 1.0.1). Without dates, so that the same run writes the same bytes.
#pragma once

#include <map>
#include <string>

#include "wick/core/tensor.h"
#include "wick/train/config.h"
#include "wick/train/dataset.h"

namespace wick {

struct LoraRun {
  const TrainConfig& config;
  const Dataset& dataset;
  const BucketOptions& buckets;
  int64_t step = 0, epoch = 0, batches_per_epoch = 0;
};

// `tensors` are those that the file will hold; their hash is part of it.
std::map<std::string, std::string> sdxl_lora_metadata(const LoraRun& run, const std::map<std::string, Tensor>& tensors);

}  // namespace wick
