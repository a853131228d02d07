#include "wick/io/descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "wick/core/error.h"

namespace wick {

FileDescriptor::FileDescriptor(std::filesystem::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK a named pipe would hang here before it can be refused.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  check(fd_ >= 0, "{}: cannot open the file: {}", path_.string(), std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(fd_, &status) == 0;
  if (known && S_ISREG(status.st_mode)) {
    size_ = uint64_t(status.st_size);
    return;
  }
  ::close(fd_);
  fail("{}: expected a file, found {}", path_.string(), S_ISDIR(status.st_mode) ? "a directory" : "something else");
}

FileDescriptor::~FileDescriptor() { ::close(fd_); }

size_t FileDescriptor::read_at(uint64_t offset, void* data, size_t bytes) const {
  constexpr size_t kMost = size_t{1} << 30;  // pread takes less than 2 GiB a call
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n =
        ::pread(fd_, static_cast<char*>(data) + done, std::min(bytes - done, kMost), off_t(offset + done));
    if (n < 0 && errno == EINTR) continue;
    check(n >= 0, "{}: cannot read the file: {}", path_.string(), std::strerror(errno));
    if (n == 0) break;
    done += size_t(n);
  }
  return done;
}

}  // namespace wick
