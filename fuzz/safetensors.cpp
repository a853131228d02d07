// The whole reader: header, checks and the load of every tensor, on whatever bytes. Only Error may come out of it.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "wick/core/error.h"
#include "wick/io/safetensors.h"

namespace {

// A file without a disk.
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

void touch(const wick::Tensor& tensor) {
  volatile float sum = 0;
  for (float value : tensor.to_vector()) sum = sum + value;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile memory_file;
  memory_file.assign(data, size);
  try {
    const auto file = wick::SafetensorsFile::open(memory_file.path());
    for (const auto& [name, info] : file.tensors()) {
      try {
        touch(file.load(name));
      } catch (const wick::Error&) {  // a dtype that is only listed
      }
    }
  } catch (const wick::Error& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();  // one line, always
  }
  return 0;
}
