// Whole files in, whole files out: a file that Wick writes is either the old one or the new one, never half of one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace wick {

// Reads a whole file, or that to which a link leads. Throws Error if it is missing, unreadable, longer than
// `max_bytes`, or not a file: a directory, a named pipe, a device.
std::string read_file(const std::filesystem::path& path, size_t max_bytes = size_t{1} << 30);

// Creates the directory and its parents. Throws Error if one of them is a file or cannot be made.
void make_directories(const std::filesystem::path& path);

// Begins a result of several files: creates `folder` and deletes its `last` file, so that a folder which holds `last`
// is complete.
void begin_folder(const std::filesystem::path& folder, const char* last);

// Writes beside the target, then puts the new file in its place: write, fsync, rename, fsync of the directory.
//
// Until commit() returns the target is untouched, and any failure (a full disk, a missing folder, a target that is a
// directory) is one Error with the temporary removed. The temporary is NAME.tmp-wick and is locked while its writer
// lives: one that a killed run left is taken over by the next write to the same target, and two writers of one target
// take turns. An existing file keeps its permissions.
//
// The name gets a new file, whether a run or `--out` chose it: a symbolic or hard link of that name, or of the
// temporary's, is replaced, and the file to which it led stays as it is. Folders on the way may be links.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();  // removes the temporary if nothing was committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  // From `offset` in the file on, whatever else is written. May be called from several threads.
  void write_at(uint64_t offset, const void* data, size_t bytes) const;
  void commit();

 private:
  void flush();
  void write_through(const char* data, size_t bytes);
  void discard() noexcept;
  [[noreturn]] void fail_to(const char* action, int error) const;

  std::filesystem::path target_, temporary_;
  std::string buffer_;
  int fd_ = -1;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

// Removes the temporaries in this folder whose writers are gone, except those that cannot be examined.
void remove_stale_temporaries(const std::filesystem::path& folder);

}  // namespace wick
