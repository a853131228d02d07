// What a run trains, from which loss, and how the result is written: one class for each --train mode.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
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
  virtual Batches& batches() = 0;
  // What the next loss is computed from: everything that changes from step to step, and all that is random.
  virtual std::vector<NamedTensor> next_batch(TrainRng& rng) = 0;
  // One f32, on the tape that is alive. Depends on the inputs' values through kernels alone, so that it can be
  // replayed; unless some of them are on the host though the model is not.
  virtual Tensor loss(const std::vector<NamedTensor>& inputs) = 0;
  // Writes the parameters as they are now to `stem`, plus an extension where it is a file; returns what was written.
  virtual std::filesystem::path save(const std::filesystem::path& stem, int64_t step) = 0;
  virtual std::string describe() const = 0;  // "A LoRA of rank 32 on 722 modules, 42.6 M parameters"
  // Of language models: tokens, without padding, of the batches that next_batch() has given.
  virtual int64_t tokens() const { return 0; }
  // The loss on what is not trained on, of the parameters as they are; none without --val. Takes no random numbers.
  virtual std::optional<double> validation_loss() { return {}; }
};

std::string parameter_count(const std::vector<Parameter>& parameters);  // "9216 parameters", "42.60 M parameters"

using Progress = std::function<void(const std::string& what, size_t done, size_t total)>;

std::unique_ptr<Task> make_task(const TrainConfig& config, const std::filesystem::path& model, Backend& backend,
                                const Dataset& dataset, const BucketOptions& buckets, const Progress& progress);
// The same task on blank pictures of `size`, or rows of text of size.width tokens, and on weights without values, for
// which nothing but the model's configs is read. It has parameters(), next_batch(), loss() and describe(); what they
// allocate is what a run allocates.
std::unique_ptr<Task> outline_task(const TrainConfig& config, const std::filesystem::path& model, Backend& backend,
                                   Size size);

}  // namespace wick
