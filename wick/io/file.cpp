#include "wick/io/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/descriptor.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// A descriptor that closes itself, for the syncs of this file.
struct OwnedFd {
  int fd;
  ~OwnedFd() {
    if (fd >= 0) ::close(fd);
  }
};

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

const char* advice_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "; free some space or write elsewhere";
    case EFBIG:
      return "; raise the file size limit (ulimit -f) or write elsewhere";
    case EMFILE:
    case ENFILE:
      return "; raise the limit of open files (ulimit -n)";
    case EACCES:
    case EPERM:
    case EROFS:
      return "; choose a place that you may write to";
    default:
      return "";
  }
}

constexpr std::string_view kTemporary = ".tmp-wick";

// A link's target is checked too: a link to a device or a directory (/dev/stdout) is there for a purpose.
fs::path checked_target(fs::path target) {
  check(target.has_filename(), "{}: expected the name of a file to write, found a directory", target.string());
  std::error_code error;
  const fs::file_status status = fs::status(target, error);
  check(!fs::is_directory(status), "{}: cannot write the file: there is a directory of that name", target.string());
  check(!fs::exists(status) || fs::is_regular_file(status), "{}: cannot replace what is not a regular file",
        target.string());
  return target;
}

bool same_file(int fd, const fs::path& path) {
  struct stat open_file {
  }, named_file{};
  return ::fstat(fd, &open_file) == 0 && ::lstat(path.c_str(), &named_file) == 0 &&
         open_file.st_dev == named_file.st_dev && open_file.st_ino == named_file.st_ino;
}

// Opens the file of a temporary's name; a link there is removed, so that nothing is written through it. Without
// O_NONBLOCK a named pipe would hang. Returns -1 with errno set.
int open_own(const fs::path& temporary) {
  while (true) {
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    struct stat status {};
    if (fd >= 0 && ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink <= 1) return fd;
    const int error = fd < 0 ? errno : ENXIO;
    const bool is_link = fd < 0 ? error == ELOOP : S_ISREG(status.st_mode);
    if (fd >= 0) ::close(fd);
    if (!is_link || ::unlink(temporary.c_str()) != 0) return errno = error, -1;
  }
}

// Opens the temporary and locks it for as long as it is open. The lock dies with its process, so a temporary that can
// be locked has no living writer. Returns -1 with errno set.
int open_locked(const fs::path& temporary) {
  using namespace std::chrono_literals;
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (true) {
    const int fd = open_own(temporary);
    if (fd < 0) return -1;
    const int error = ::flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    // A file system without locks (some network mounts) is written without one.
    const bool locked = error == 0 || error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP;
    // Between open and lock another writer may have renamed this very file into place.
    if (locked && same_file(fd, temporary)) return fd;
    ::close(fd);
    if (error != 0 && error != EWOULDBLOCK && error != EINTR && !locked) return errno = error, -1;
    if (std::chrono::steady_clock::now() > deadline) return errno = EWOULDBLOCK, -1;
    std::this_thread::sleep_for(5ms);
  }
}

// The name must survive a power cut as well as the bytes.
void sync_directory(const fs::path& directory) {
  const OwnedFd owned{::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (owned.fd >= 0) ::fsync(owned.fd);  // some file systems cannot; the rename stands either way
}

}  // namespace

std::string read_file(const fs::path& path, size_t max_bytes) {
  const FileDescriptor file(path);
  const auto check_length = [&](uint64_t bytes) {
    check(bytes <= max_bytes, "{}: the file is longer than the {} that are accepted here", path.string(),
          count_of(max_bytes, "byte"));
  };
  check_length(file.size());
  // The size is a hint: files of /proc have none, and others grow while they are read.
  std::string bytes;
  size_t room = size_t(file.size()) + 1;
  while (true) {
    const size_t done = bytes.size(), wanted = std::min(room, max_bytes - done + 1);
    bytes.resize(done + wanted);
    const size_t found = file.read_at(done, bytes.data() + done, wanted);
    bytes.resize(done + found);
    check_length(bytes.size());
    if (found < wanted) return bytes;
    room = std::max<size_t>(bytes.size() / 2, 4096);
  }
}

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  check(!error && fs::is_directory(path, error), "{}: cannot create the directory: {}{}", path.string(),
        error ? error.message() : "there is a file of that name", advice_for(error.value()));
}

void begin_folder(const fs::path& folder, const char* last) {
  make_directories(folder);
  std::error_code error;
  fs::remove(folder / last, error);
  check(!error, "{}: cannot be written anew: {}", (folder / last).string(), error.message());
}

AtomicFile::AtomicFile(fs::path target) : target_(checked_target(std::move(target))), temporary_(target_) {
  temporary_ += kTemporary;
  fd_ = open_locked(temporary_);
  if (fd_ < 0 && errno == EWOULDBLOCK)
    fail("{}: another process has been writing this file for 30 s", target_.string());
  if (fd_ < 0 && errno == ENOENT)
    fail("{}: cannot write the file: there is no directory {}", target_.string(), parent_of(target_).string());
  if (fd_ < 0) fail_to("create", errno);
  struct stat old {};
  if (::lstat(target_.c_str(), &old) == 0 && S_ISREG(old.st_mode)) ::fchmod(fd_, old.st_mode & 0777);
  if (::ftruncate(fd_, 0) == 0) return;
  const int error = errno;
  discard();  // there is no destructor yet
  fail_to("write", error);
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::write(const void* data, size_t bytes) {
  constexpr size_t kBuffer = size_t{1} << 20;
  if (buffer_.size() + bytes > kBuffer) flush();
  if (bytes > kBuffer)
    write_through(static_cast<const char*>(data), bytes);
  else
    buffer_.append(static_cast<const char*>(data), bytes);
}

void AtomicFile::commit() {
  flush();
  if (::fsync(fd_) != 0) fail_to("write", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_to("write", errno);
  ::close(std::exchange(fd_, -1));
  sync_directory(parent_of(target_));
}

void AtomicFile::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void AtomicFile::write_through(const char* data, size_t bytes) {
  constexpr size_t kMost = size_t{1} << 30;
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, data, std::min(bytes, kMost));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_to("write", n < 0 ? errno : EIO);
    data += n;
    bytes -= size_t(n);
  }
}

void AtomicFile::write_at(uint64_t offset, const void* data, size_t bytes) const {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, from, bytes, off_t(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_to("write", n < 0 ? errno : EIO);
    from += n;
    offset += uint64_t(n);
    bytes -= size_t(n);
  }
}

// The temporary is removed before it is closed: while the lock is held it is certainly ours.
void AtomicFile::discard() noexcept {
  if (fd_ < 0) return;
  ::unlink(temporary_.c_str());
  ::close(std::exchange(fd_, -1));
}

void AtomicFile::fail_to(const char* action, int error) const {
  const std::string message =
      fmt::format("{}: cannot {} the file: {}{}", target_.string(), action, std::strerror(error), advice_for(error));
  if (error == EMFILE || error == ENFILE) throw TooManyFiles(message);
  throw Error(message);
}

void write_file_atomically(const fs::path& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

// By the writers' rule, a temporary that can be locked has no living writer.
void remove_stale_temporaries(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path& file = entry->path();
    if (!file.filename().string().ends_with(kTemporary)) continue;
    const OwnedFd owned{::open(file.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
    struct stat status {};
    if (owned.fd >= 0 && ::fstat(owned.fd, &status) == 0 && S_ISREG(status.st_mode) &&
        ::flock(owned.fd, LOCK_EX | LOCK_NB) == 0 && same_file(owned.fd, file))
      ::unlink(file.c_str());
  }
}

}  // namespace wick
