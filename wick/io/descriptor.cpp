#include "wick/io/descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "something else";
}

}  // namespace

void fail_to_open(const std::string& name, int error) {
  const std::string message = fmt::format("{}: cannot open the file: {}", name, std::strerror(error));
  if (error == EMFILE || error == ENFILE) throw TooManyFiles(message + "; raise the limit of open files (ulimit -n)");
  throw Error(message);
}

FileDescriptor::FileDescriptor(std::filesystem::path path) : path_(std::move(path)) {
  const std::string name = path_.string();
  check(name.find('\0') == name.npos, "{}: no file has a name with a NUL character in it", quote(name));
  // The type is checked before opening: a socket cannot be opened, and opening a device may set it to work.
  struct stat status {};
  const bool is_there = ::stat(path_.c_str(), &status) == 0;
  check(is_there, "{}: cannot open the file: {}", name, std::strerror(errno));
  check(S_ISREG(status.st_mode), "{}: expected a file, found {}", name, kind_of(status.st_mode));
  // A named pipe that took the file's place since then would hang without O_NONBLOCK.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) fail_to_open(name, errno);
  if (::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode)) {
    size_ = uint64_t(status.st_size);
    return;
  }
  ::close(fd_);
  fail("{}: expected a file, found {}", name, kind_of(status.st_mode));
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
