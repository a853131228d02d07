// An open file, read at given offsets. All files that Wick reads are opened here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "wick/core/error.h"

namespace wick {

// The process has as many open files as it may have: this says nothing of the file that was to be opened.
class TooManyFiles : public Error {
 public:
  using Error::Error;
};
[[noreturn]] void fail_to_open(const std::string& name, int error);  // throws TooManyFiles, or another Error

class FileDescriptor {
 public:
  // Opens a regular file, or a link to one. Throws Error at once if it is missing, unreadable or something else: a
  // directory, a named pipe, a socket, a device; TooManyFiles where no more may be open.
  explicit FileDescriptor(std::filesystem::path path);
  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }  // at the time of opening

  size_t read_at(uint64_t offset, void* data, size_t bytes) const;  // returns less only at the end of the file

 private:
  std::filesystem::path path_;
  int fd_;
  uint64_t size_ = 0;
};

}  // namespace wick
