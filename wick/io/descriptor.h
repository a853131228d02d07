// An open file that is read at given offsets. Whatever Wick reads is opened here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace wick {

class FileDescriptor {
 public:
  // Opens a regular file, or what a link to one leads to. Throws Error at once if it is missing, unreadable or
  // something else: a directory, a named pipe, a socket, a device.
  explicit FileDescriptor(std::filesystem::path path);
  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }  // when it was opened

  size_t read_at(uint64_t offset, void* data, size_t bytes) const;  // returns less only at the end of the file

 private:
  std::filesystem::path path_;
  int fd_;
  uint64_t size_ = 0;
};

}  // namespace wick
