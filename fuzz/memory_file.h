// Shared by the targets of readers: a file without a disk, a look at the loaded tensors, and what may be thrown.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "wick/core/error.h"
#include "wick/core/tensor.h"

namespace wick::fuzz {

class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    if (fd_ < 0) std::abort();
  }
  const std::string& path() const { return path_; }
  void assign(const uint8_t* data, size_t size) {
    if (ftruncate(fd_, 0) != 0 || pwrite(fd_, data, size, 0) != ssize_t(size)) std::abort();
  }

 private:
  int fd_;
  std::string path_;
};

inline void touch(const Tensor& tensor) {
  volatile float sum = 0;
  for (float value : tensor.to_vector()) sum = sum + value;
}

// Only Error may come out, and of one line.
template <class Action>
void attempt(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
}

}  // namespace wick::fuzz
