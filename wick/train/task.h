// The trained parameters of a run, their loss, and the files of the result: one class for each --train mode.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "wick/autograd/block_schedule.h"
#include "wick/core/named_tensors.h"
#include "wick/nn/checkpoint.h"
#include "wick/ranks/ranks.h"
#include "wick/train/batches.h"
#include "wick/train/config.h"
#include "wick/train/dataset.h"
#include "wick/train/previews.h"
#include "wick/train/train_rng.h"

namespace wick {

class Task {
 public:
  virtual ~Task() = default;
  virtual std::vector<Parameter> parameters() const = 0;
  virtual Batches& batches() = 0;
  // All that the next loss is computed from: everything that changes from step to step, and all that is random. Batches
  // of the same shapes have the same names.
  virtual NamedTensors next_batch(TrainRng& rng) = 0;
  // One f32, on the tape that is alive. Depends on the batch's values through kernels alone, so that it can be
  // replayed; unless some of them are on the host though the model is not.
  virtual Tensor loss(const NamedTensors& batch) = 0;
  // Behind an update: brings the parameters within the limits that they are trained in. False where they have none.
  virtual bool limit_parameters() const { return false; }
  // Writes the present parameters to `stem`, plus an extension where it is a file; returns the path written.
  virtual std::filesystem::path save(const std::filesystem::path& stem, int64_t step) = 0;
  virtual std::string describe() const = 0;  // "A LoRA of rank 32 on 722 modules, 42.6 M parameters"
  // Sentences on what was met while it was loaded.
  virtual std::vector<std::string> remarks() const { return {}; }
  // A note on the weights that the model's memory holds, where these are more than usual.
  virtual std::string about_weights() const { return {}; }
  // For language models: tokens, without padding, of the batches that next_batch() has given.
  virtual int64_t tokens() const { return 0; }
  // The loss on held-back data with the present parameters; none without --val. Takes no random numbers.
  virtual std::optional<double> validation_loss() { return {}; }
  // What a prompt of --sample-prompts makes of the present parameters. Takes no random numbers of the run's.
  virtual Preview preview(size_t index, const OnPreviewStep& on_step);  // unless overridden there is none
  virtual void outline_previews() {}                                    // in an outline: allocates as all of them do
};

// A task's pictures: a data set, or in an outline blank pictures of a size.
struct PictureData {
  const Dataset* dataset = nullptr;
  const Dataset* held_back = nullptr;  // of --val, if any
  StepOrder order = {};
  Ranks* ranks = nullptr;  // that share the work of encoding
  Progress progress = {};
  Size blank = {};

  bool outline() const { return dataset == nullptr; }
};

std::unique_ptr<Task> make_task(const TrainConfig& config, const Checkpoint& model, Backend& backend,
                                const PictureData& data, const BlockSchedule& block_schedule);
// The same task on blank pictures of `size`, or rows of text of size.width tokens, and on weights without values, for
// which only the model's configs are read. It has parameters(), next_batch(), loss() and describe(), which allocate as
// in a run.
std::unique_ptr<Task> outline_task(const TrainConfig& config, const Checkpoint& model, Backend& backend, Size size,
                                   const BlockSchedule& block_schedule);

}  // namespace wick
