// What a run trains, from which loss, and how the result is written: one class for each --train mode.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "wick/nn/weights.h"
#include "wick/train/batches.h"
#include "wick/train/config.h"
#include "wick/train/dataset.h"
#include "wick/train/train_rng.h"

namespace wick {

struct NamedTensor {
  std::string name;
  Tensor value;
};

class Task {
 public:
  virtual ~Task() = default;
  virtual std::vector<Parameter> parameters() const = 0;
  virtual BatchSampler& batches() = 0;
  // The loss of the next batch, on the tape that is alive.
  virtual Tensor next_loss(TrainRng& rng) = 0;
  // What went into the last loss, where to look for a NaN first.
  virtual std::vector<NamedTensor> last_inputs() const = 0;
  // Writes the parameters as they are now to `stem`, plus an extension where it is a file; returns what was written.
  virtual std::filesystem::path save(const std::filesystem::path& stem, int64_t step) = 0;
  virtual std::string describe() const = 0;  // "A LoRA of rank 32 on 722 modules, 42.6 M parameters"
};

using Progress = std::function<void(const std::string& what, size_t done, size_t total)>;

std::unique_ptr<Task> make_task(const TrainConfig& config, const std::filesystem::path& model, const Dataset& dataset,
                                const BucketOptions& buckets, const Progress& progress);

}  // namespace wick
