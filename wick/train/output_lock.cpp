#include "wick/train/output_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "wick/core/error.h"

namespace wick {

OutputLock::OutputLock(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "lock";
  fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  check(fd_ >= 0, "{}: cannot be opened: {}", file.string(), std::strerror(errno));
  // A file system without locks (some network mounts) is written without one.
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(fd_);
  fail("{}: another run is writing there; give this one a folder of its own with --output",
       folder.parent_path().string());
}

OutputLock::~OutputLock() { ::close(fd_); }

}  // namespace wick
