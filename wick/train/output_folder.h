// The folder that a run writes to: one run at a time, and none over existing results.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "wick/train/config.h"

namespace wick {

class OutputLock {
 public:
  // Throws Error if another run holds it. The lock dies with its process, so a killed run leaves none.
  explicit OutputLock(const std::filesystem::path& folder);
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  int fd_;
};

// Throws Error if the run would overwrite files in its folder, be they of a run that it does not --resume or not, and
// if there is no run to --resume. A run that ended before its first step left nothing to lose. Writes nothing.
void check_output(const TrainConfig& config);
// Throws Error if a folder in the run's folder that the run would write to is a link, be it to nothing, or if a link to
// a folder has the place of a file. --output itself may be a link, and so may --cache. Writes nothing.
void check_links(const TrainConfig& config, const Checkpoint& model);
// Throws Error if the run's output would become part of its input: within the data sets or the model, links followed,
// or in place of one of their files. Writes nothing.
void check_apart(const TrainConfig& config, const Checkpoint& model);
// Bytes that may be written to the disk of a folder, or of the one in which it will be made; none where unknown.
std::optional<uint64_t> free_disk(const std::filesystem::path& folder);
// Removes the temporaries of a killed run. The caller has the lock.
void remove_leftovers(const TrainConfig& config);
// Of what the run saved on the way, NAME-000100 with an extension or without, removes all but --keep-last. The caller
// has the lock.
void remove_older_results(const TrainConfig& config);
// How many results lie there that the run saved on the way.
int64_t results_before(const TrainConfig& config);
// Throws Error if a run is writing there now; writes nothing where there has been none.
void check_not_written(const std::filesystem::path& output);

}  // namespace wick
