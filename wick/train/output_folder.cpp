#include "wick/train/output_folder.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "wick/core/error.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// The lock of every run that has been there, under way or not.
bool had_a_run(const fs::path& output) { return is_there(output / "state" / "lock"); }

// Where there is no such folder yet, the one in which it will be made.
void check_writable(const fs::path& output) {
  fs::path there = output;
  while (!is_there(there) && there.has_relative_path()) there = there.parent_path();
  std::error_code ignored;
  check(fs::is_directory(there, ignored), "--output {}: expected a folder, found the file {}", output.string(),
        there.string());
  check(::access(there.c_str(), W_OK) == 0, "--output {}: the folder {} is not writable", output.string(),
        there.string());
}

// NAME or NAME-000100, with an extension or without.
bool is_result(std::string_view file, std::string_view name) {
  constexpr std::string_view kExtension = ".safetensors";
  if (!file.starts_with(name)) return false;
  file.remove_prefix(name.size());
  if (file.ends_with(kExtension)) file.remove_suffix(kExtension.size());
  const bool digits = file.find_first_not_of("0123456789", 1) == file.npos;
  return file.empty() || (file.size() > 1 && file.front() == '-' && digits);
}

std::vector<std::string> results(const fs::path& output, const std::string& name) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(output, error), end; !error && entry != end; entry.increment(error))
    if (const std::string file = entry->path().filename().string(); is_result(file, name)) found.push_back(file);
  std::sort(found.begin(), found.end());
  return found;
}

// What a run would write over. The settings of a run that did no step are no loss, nor is its empty record.
std::vector<std::string> written_over(const fs::path& output, const std::string& name) {
  std::vector<std::string> found = results(output, name);
  if (!had_a_run(output) && is_there(output / "config.toml")) found.emplace_back("config.toml");
  std::error_code ignored;
  if (is_there(output / "metrics.jsonl") && !fs::is_empty(output / "metrics.jsonl", ignored))
    found.emplace_back("metrics.jsonl");
  for (const char* file : {"loss.png", "state/state.safetensors"})
    if (is_there(output / file)) found.emplace_back(file);
  return found;
}

}  // namespace

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

void check_output(const TrainConfig& config) {
  const fs::path output = config.output;
  check_writable(output);
  const bool resumable = had_a_run(output) || is_there(output / "state" / "state.safetensors");
  if (config.resume && resumable) return;
  const std::vector<std::string> found = written_over(output, config.name);
  if (found.empty()) return;
  const size_t shown = std::min(found.size(), size_t{3});
  fail("--output {}: {} ({}{}); {}", output.string(),
       resumable ? "holds an earlier run" : "the run would write over what is there",
       fmt::join(found.begin(), found.begin() + long(shown), ", "), shown < found.size() ? ", …" : "",
       resumable ? "go on with it by --resume, choose another --output, or remove the folder"
                 : "choose another --output, or move that elsewhere");
}

void check_not_written(const fs::path& output) {
  if (had_a_run(output)) const OutputLock free(output / "state");
}

}  // namespace wick
