// The work of a run: a model and the data to learn from, read and checked before anything is loaded.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "wick/train/data_files.h"
#include "wick/train/plan.h"
#include "wick/train/task.h"

namespace wick {

class Job {
 public:
  virtual ~Job() = default;

  virtual Size largest() const = 0;  // of a batch's items, as a MemoryPlan has it
  // The settings with which a batch of largest() is planned: a data set may have a batch size of its own.
  virtual TrainConfig planned(TrainConfig config) const { return config; }
  virtual int64_t batch_size() const = 0;                          // of the largest batches
  virtual std::string data_hash() const = 0;                       // of the training data
  virtual const std::vector<DataFile>& data_files() const = 0;     // that it is read from
  virtual bool validates() const = 0;                              // whether examples are held back
  virtual std::string_view item() const = 0;                       // the items of a batch: "picture"
  virtual std::string describe() const = 0;                        // "12 pictures in 3 buckets"
  virtual std::vector<std::string> remarks() const { return {}; }  // for the user, before the run
  // The file of a result at `stem` (NAME, or NAME-000100) that is written last: with it the result is whole.
  virtual std::filesystem::path last_file(const std::filesystem::path& stem) const = 0;
  // The chat templates of conversations that are learnt; empty where there are none.
  virtual std::string chat_template() const { return ""; }
  virtual bool tells_time() const { return false; }    // whether that template may tell the time
  virtual uint64_t copied_bytes() const { return 0; }  // of the model's files, copied to a result
  // Of this many epochs, the last of which may end within its last step.
  int64_t steps(int64_t epochs) const;
  // The same job with other settings of memory: precision, blocks that are recomputed.
  virtual void set_memory(const TrainConfig& config) = 0;
  void set_order(const StepOrder& order) { order_ = order; }
  const StepOrder& order() const { return order_; }
  // The job outlives its task.
  virtual std::unique_ptr<Task> load(Backend& backend, const BlockSchedule& block_schedule, const Progress& progress,
                                     Ranks& ranks) const = 0;

 protected:
  // Batches::steps_per_epoch() of so many epochs together.
  virtual int64_t steps_of_epochs(int64_t epochs) const = 0;
  virtual int64_t repeated() const = 0;  // Batches::repeated() of the first
  std::string repeated_in_words()
      const;  // samples that fill steps in the first epoch, for the user; empty where none do

 private:
  StepOrder order_;
};

// Trains a language model where `model` is a transformers folder or a GGUF file, else a diffusion model.
std::unique_ptr<Job> open_job(const TrainConfig& config, const Checkpoint& model, const Progress& progress);

}  // namespace wick
