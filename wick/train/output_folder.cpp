#include "wick/train/output_folder.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>
#include <vector>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/train/dataset_file.h"
#include "wick/train/state.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

constexpr std::array kFiles = {"config.toml", "index.html", "loss.png", "metrics.jsonl"};
constexpr std::string_view kResultExtension = ".safetensors";
constexpr const char* kCache = "cache";
constexpr std::array kFolders = {kCache, "logs", "samples", "state"};

// Whether a run has been there: it leaves its lock, even where its states are gone, or states.
bool had_a_run(const fs::path& output) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(output / "state" / "lock", ignored)) || !state_files(output / "state").empty();
}

// The folder, or where there is none yet, the one in which it will be made.
fs::path nearest(fs::path folder) {
  while (!is_there(folder) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

void check_writable(const fs::path& output) {
  const fs::path there = nearest(output);
  std::error_code ignored;
  check(fs::is_directory(there, ignored), "--output {}: expected a folder, found the file {}", output.string(),
        there.string());
  check(::access(there.c_str(), W_OK) == 0, "--output {}: the folder {} is not writable", output.string(),
        there.string());
}

// NAME or NAME-000100, with an extension or without.
bool is_result(std::string_view file, std::string_view name) {
  if (!file.starts_with(name)) return false;
  file.remove_prefix(name.size());
  if (file.ends_with(kResultExtension)) file.remove_suffix(kResultExtension.size());
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

// Those that a run saved on the way.
std::map<int64_t, std::string> results_by_step(const TrainConfig& config) {
  std::map<int64_t, std::string> by_step;
  for (const std::string& file : results(config.output, config.name))
    if (const std::string step = file.substr(config.name.size()); step.size() > 1 && step.front() == '-')
      by_step[std::atoll(step.c_str() + 1)] = file;
  return by_step;
}

// The files that a run would overwrite. The settings of a run that did no step are no loss, nor is its empty record.
std::vector<std::string> written_over(const fs::path& output, const std::string& name) {
  std::vector<std::string> found = results(output, name);
  if (!had_a_run(output) && is_there(output / "config.toml")) found.emplace_back("config.toml");
  std::error_code ignored;
  if (is_there(output / "metrics.jsonl") && !fs::is_empty(output / "metrics.jsonl", ignored))
    found.emplace_back("metrics.jsonl");
  for (const char* drawn : {"index.html", "loss.png"})
    if (is_there(output / drawn)) found.emplace_back(drawn);
  if (!had_a_run(output) && is_there(output / "samples")) found.emplace_back("samples");
  for (const fs::path& file : state_files(output / "state")) found.push_back("state/" + file.filename().string());
  return found;
}

// The path with all links in its existing part followed.
fs::path real_path(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  return error ? path.lexically_normal() : real;
}

// "." for the folder itself; none for a path outside it.
std::optional<fs::path> path_within(const fs::path& path, const fs::path& folder) {
  const fs::path within = path.lexically_relative(folder);
  if (within.empty() || *within.begin() == "..") return {};
  return within;
}

// Whether a run writes a file or folder of this name within its folder: "loss.png", "lora-000100".
bool is_written(const std::string& file, const TrainConfig& config) {
  const auto is_file = [&](const char* name) { return file == name; };
  return std::any_of(kFiles.begin(), kFiles.end(), is_file) || std::any_of(kFolders.begin(), kFolders.end(), is_file) ||
         is_result(file, config.name);
}

// Throws Error if the input at `path` is a file or folder that the run writes.
void check_not_a_result(const TrainConfig& config, const char* what, const fs::path& path) {
  const auto within = path_within(real_path(path), real_path(config.output));
  check(!within || !is_written(within->begin()->string(), config),
        "--output {}: the run would write over {} {}; choose another --output or --name", config.output, what,
        path.string());
}

bool is_link(const fs::path& path) {
  std::error_code ignored;
  return fs::is_symlink(path, ignored);
}

// Whether the path is a link to a folder, or to nothing where the run would make a folder. Links to files are replaced.
bool leads_to_folder(const fs::path& path, bool makes_folder) {
  std::error_code ignored;
  return is_link(path) && (fs::is_directory(path, ignored) || (!is_there(path) && makes_folder));
}

void check_not_through(const TrainConfig& config, const fs::path& path, bool leads_away, const char* more = "") {
  check(!leads_away,
        "--output {}: {} is a link, and a run writes nothing through one; put the folder or file itself in its place, "
        "or choose another --output{}",
        config.output, path.string(), more);
}

// A flock dies with its descriptor. A link of the lock's name is removed, so that no file elsewhere is made or locked.
// Returns -1 with errno set.
int open_lock(const fs::path& file) {
  while (true) {
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    struct stat status {};
    if (fd >= 0 && ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) return fd;
    const int error = fd < 0 ? errno : ENXIO;
    if (fd >= 0) ::close(fd);
    if (error != ELOOP || ::unlink(file.c_str()) != 0) return errno = error, -1;
  }
}

}  // namespace

OutputLock::OutputLock(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "lock";
  fd_ = open_lock(file);
  check(fd_ >= 0, "{}: cannot be opened: {}", file.string(), std::strerror(errno));
  // A file system without locks (some network mounts) is written without one.
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(fd_);
  fail("{}: another run is writing there; give this one a folder of its own with --output",
       folder.parent_path().string());
}

OutputLock::~OutputLock() { ::close(fd_); }

void check_links(const TrainConfig& config, const Checkpoint& model) {
  const fs::path output = config.output;
  for (const char* name : kFolders)
    if (std::string_view(name) != kCache || config.cache.empty())
      check_not_through(config, output / name, is_link(output / name),
                        std::string_view(name) == kCache ? "; --cache names a folder elsewhere" : "");
  check_not_through(config, output / "logs/samples", is_link(output / "logs/samples"));
  for (const char* name : kFiles) check_not_through(config, output / name, leads_to_folder(output / name, false));
  const bool are_folders = config.train != TrainMode::lora || kind_of(model) == ModelKind::text;
  for (const std::string& result : results(output, config.name)) {
    const bool is_folder = !result.ends_with(kResultExtension);  // a run's name may have dots
    if (is_folder == are_folders)
      check_not_through(config, output / result, leads_to_folder(output / result, is_folder));
    if (!is_folder || !are_folders) continue;
    std::error_code error;
    for (fs::recursive_directory_iterator entry(output / result, error), end; !error && entry != end;
         entry.increment(error))
      check_not_through(config, entry->path(), leads_to_folder(entry->path(), entry->path().extension().empty()));
  }
}

void check_output(const TrainConfig& config) {
  const fs::path output = config.output;
  check_writable(output);
  const bool resumable = had_a_run(output);
  if (config.resume && resumable) return;
  const std::vector<std::string> found = written_over(output, config.name);
  const size_t shown = std::min(found.size(), size_t{3});
  check(found.empty(), "--output {}: {} ({}{}); {}", output.string(),
        resumable ? "holds an earlier run" : "the run would write over what is there",
        fmt::join(found.begin(), found.begin() + long(shown), ", "), shown < found.size() ? ", …" : "",
        resumable ? "go on with it by --resume, choose another --output, or remove the folder"
                  : "choose another --output, or move that elsewhere");
  check(!config.resume, "--output {}: holds no run to --resume ({}); without --resume one begins there",
        output.string(), is_there(output) ? "there is no state/ of one in it" : "there is no such folder");
}

void check_apart(const TrainConfig& config, const Checkpoint& model) {
  const fs::path output = real_path(config.output);
  const std::vector<std::string> pictures = data_paths(config);
  const std::vector<std::string> regularising(config.reg_data_dir.empty() ? 0 : 1, config.reg_data_dir);
  for (const auto& [flag, paths] :
       {std::pair{"--dataset", &pictures}, {"--val", &config.val}, {"--reg-data-dir", &regularising}})
    for (const std::string& path : *paths) {
      std::vector<fs::path> all{path};
      std::error_code ignored;
      if (is_dataset_file(path) && fs::exists(path, ignored))
        std::ranges::copy(dataset_folders(path), std::back_inserter(all));
      for (const fs::path& part : all) {
        check(!fs::is_directory(part, ignored) || !path_within(output, real_path(part)),
              "--output {}: lies in {} {}, of which the run's pictures and texts would be part; choose one elsewhere",
              config.output, flag, part.string());
        check_not_a_result(config, flag, part);
      }
    }
  std::error_code unreadable;
  check(config.cache.empty() || config.cache == "none" || !is_there(config.cache) ||
            fs::is_directory(config.cache, unreadable),
        "--cache {}: expected a folder, found a file", config.cache);
  for (const std::string& path : pictures) {
    std::error_code ignored;
    check(config.cache.empty() || config.cache == "none" || !fs::is_directory(path, ignored) ||
              !path_within(real_path(config.cache), real_path(path)),
          "--cache {}: lies in --dataset {}; choose a folder elsewhere", config.cache, path);
  }
  std::vector<fs::path> parts{model.path()};
  std::error_code error;  // a model's folder may be a link, and so may those in it
  for (fs::directory_iterator entry(model.path(), error), end; !error && entry != end; entry.increment(error))
    if (std::error_code ignored; entry->is_directory(ignored)) parts.push_back(entry->path());
  for (const fs::path& part : parts)
    check(!path_within(output, real_path(part)),
          "--output {}: lies in --model {}, of which the run's files would be part; choose one elsewhere",
          config.output, model.name());
  check_not_a_result(config, "--model", model.path());
  if (!config.from.empty()) check_not_a_result(config, "--from", config.from);
  if (!config.sample_prompts.empty()) check_not_a_result(config, "--sample-prompts", config.sample_prompts);
  for (const auto& [part, path] : model_files(config).parts) check_not_a_result(config, part_flag(part).c_str(), path);
}

std::optional<uint64_t> free_disk(const fs::path& folder) {
  std::error_code error;
  const fs::space_info space = fs::space(nearest(folder), error);
  return error ? std::nullopt : std::optional<uint64_t>(space.available);
}

void remove_leftovers(const TrainConfig& config) {
  const fs::path output = config.output;
  remove_stale_temporaries(output);
  for (const char* folder : kFolders)
    if (!is_link(output / folder)) remove_stale_temporaries(output / folder);
  for (const std::string& result : results(output, config.name)) {
    remove_stale_temporaries(output / result);
    std::error_code error;
    for (fs::directory_iterator entry(output / result, error), end; !error && entry != end; entry.increment(error))
      if (std::error_code ignored; entry->is_directory(ignored)) remove_stale_temporaries(entry->path());
  }
}

int64_t results_before(const TrainConfig& config) { return std::ssize(results_by_step(config)); }

void remove_older_results(const TrainConfig& config) {
  if (config.keep_last == 0) return;
  std::map<int64_t, std::string> by_step = results_by_step(config);
  while (int64_t(by_step.size()) > config.keep_last) {
    const fs::path oldest = fs::path(config.output) / by_step.begin()->second;
    std::error_code error;
    fs::remove_all(oldest, error);
    check(!error, "--keep-last: {} cannot be removed: {}", oldest.string(), error.message());
    by_step.erase(by_step.begin());
  }
}

void check_not_written(const fs::path& output) {
  if (had_a_run(output)) const OutputLock free(output / "state");
}

}  // namespace wick
