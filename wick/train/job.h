// What a run has to do: a model and the data that it is to learn from, read and checked before anything is loaded.
#pragma once

#include <filesystem>
#include <map>
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

  virtual Size largest() const = 0;                                // of a batch's items, as a MemoryPlan has it
  virtual std::string data_hash() const = 0;                       // of what is trained on
  virtual const std::vector<DataFile>& data_files() const = 0;     // that it is read from
  virtual std::string_view item() const = 0;                       // what a batch holds: "picture"
  virtual std::string describe() const = 0;                        // "12 pictures in 3 buckets"
  virtual std::vector<std::string> remarks() const { return {}; }  // what a user should know before the run
  // Of the files of a result at `stem` (NAME, or NAME-000100) the one that is written last: with it the result is
  // whole.
  virtual std::filesystem::path last_file(const std::filesystem::path& stem) const = 0;
  virtual uint64_t copied_bytes() const { return 0; }  // of the model's files, that a result takes over
  virtual int64_t batches(int64_t epochs) const = 0;   // that so many epochs have
  // The job outlives its task.
  virtual std::unique_ptr<Task> load(Backend& backend, const Progress& progress) const = 0;
};

// Of a language model where `model` is a transformers folder or a GGUF file, else of SDXL.
std::unique_ptr<Job> open_job(const TrainConfig& config, const std::filesystem::path& model, const Progress& progress);

}  // namespace wick
