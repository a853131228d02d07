// A folder that one run writes to at a time.
#pragma once

#include <filesystem>

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

}  // namespace wick
