// The folder that a run writes to: one run at a time, and none over what is there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "wick/train/config.h"

namespace wick {

class OutputLock {
 public:
  // Throws Error if another run holds it. The lock dies with its process, so that one that was killed leaves none.
  explicit OutputLock(const std::filesystem::path& folder);
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  int fd_;
};

// Throws Error if the run would write over what is in its folder: the files of a run that it does not --resume, or of
// anybody; and if there is none to --resume. A run that ended before its first step left nothing to lose. Writes
// nothing.
void check_output(const TrainConfig& config);
// Throws Error if what the run writes would come to be part of what it reads: within the data sets or the model, links
// followed, or in place of one of their files. Writes nothing.
void check_apart(const TrainConfig& config, const std::filesystem::path& model);
// Whether a run's file or folder of this name, within its folder, is one that it writes: "loss.png", "lora-000100".
bool is_written(const std::string& file, const TrainConfig& config);
// Bytes that may be written to the disk of a folder, or of the one in which it will be made; none where that is
// unknown.
std::optional<uint64_t> free_disk(const std::filesystem::path& folder);
// Removes the temporaries that a run which was killed left behind. The caller has the lock.
void remove_leftovers(const TrainConfig& config);
// Throws Error if a run is writing there now; where there has been none, nothing is written.
void check_not_written(const std::filesystem::path& output);

}  // namespace wick
