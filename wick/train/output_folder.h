// The folder that a run writes to: one run at a time, and none over what is there.
#pragma once

#include <filesystem>

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
// anybody. A run that ended before its first step left nothing to lose. Writes nothing.
void check_output(const TrainConfig& config);
// Throws Error if a run is writing there now; where there has been none, nothing is written.
void check_not_written(const std::filesystem::path& output);

}  // namespace wick
