// A LoRA file's metadata, in the keys that ComfyUI's and A1111's users know: kohya's ss_* and sshs_*
// (kohya-ss/sd-scripts, train_network.py, networks/lora.py), and modelspec.* (Stability-AI/ModelSpec 1.0.1), spelt as
// Python spells them there. Times, dates and the session's id differ from run to run unless SOURCE_DATE_EPOCH
// (reproducible-builds.org) is set, which then stands for every time.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "wick/core/tensor.h"
#include "wick/pipelines/process.h"
#include "wick/train/config.h"
#include "wick/train/dataset.h"

namespace wick {

// A process that trains, as kohya counts them: one that goes on with another's run is a session of its own.
struct LoraSession {
  double started_at;  // seconds since 1970
  uint32_t id;

  // Throws UsageError if SOURCE_DATE_EPOCH is no time.
  static LoraSession begin(const TrainConfig& config);
};

// The facts that metadata of rectified flows tell beside those of all runs.
struct FlowRun {
  TimestepOptions times;  // with the shift that they have, unless every picture's size has its own
  int64_t t5_tokens = 0;
  bool is_guided = false;  // the model is told its guidance
};

struct LoraRun {
  const TrainConfig& config;
  const Dataset& dataset;
  LoraSession session;
  int64_t step = 0, batches_per_epoch = 0;
  DType activations = DType::f32;                  // that arithmetic had
  std::map<std::string, std::string> family = {};  // LoraFormat::metadata
  std::optional<FlowRun> flow = {};

  int64_t epochs() const;       // that all of the run's steps take, the last maybe in part
  int64_t epochs_done() const;  // whole ones, but at the end of the run all
};

// `tensors` are those that the file will hold; their hash is part of it.
std::map<std::string, std::string> lora_metadata(const LoraRun& run, const std::map<std::string, Tensor>& tensors);

}  // namespace wick
