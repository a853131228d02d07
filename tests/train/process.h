// `wick` as a process of its own: its output, its end, and ways to end it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/files.h"
#include "source_dir.h"
#include "wick/io/safetensors.h"

namespace wick {

struct Outcome {
  int code = -1;  // the shell's: 128 + signal where one ended it
  std::string out, err;
};

class ChildProcess {
 public:
  // `largest_file` in bytes stands in for a full disk; 0 sets no limit. `prepare` runs in the new process.
  ChildProcess(const std::vector<std::string>& arguments, const std::filesystem::path& scratch, rlim_t largest_file = 0,
               const std::function<void()>& prepare = {})
      : out_(scratch / "stdout"), err_(scratch / "stderr") {
    const char* elsewhere = std::getenv("WICK_BINARY");  // from a build that was carried
    std::vector<char*> argv{const_cast<char*>(elsewhere ? elsewhere : WICK_BINARY)};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    redirect(out_, STDOUT_FILENO);
    redirect(err_, STDERR_FILENO);
    const rlimit limit{largest_file, largest_file};
    if (largest_file > 0) setrlimit(RLIMIT_FSIZE, &limit);
    setenv("OMP_NUM_THREADS", "1", 1);  // the model is too small for more, and several tests run at once
    if (prepare) prepare();
    execv(argv[0], argv.data());
    _exit(127);
  }

  void signal(int number) const { kill(pid_, number); }

  Outcome wait() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_plain(out_), read_plain(err_)};
  }

 private:
  static void redirect(const std::filesystem::path& file, int to) {
    const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(fd, to);
    close(fd);
  }

  std::filesystem::path out_, err_;
  pid_t pid_ = 0;
};

// Five of data/tiny-style with their captions, into a new folder.
inline void copy_pictures(const std::filesystem::path& folder) {
  std::filesystem::create_directory(folder);
  for (const char* name : {"0001", "0002", "0009", "0012", "0015"})
    for (const char* extension : {".png", ".jpg", ".webp", ".txt"}) {
      const std::filesystem::path file = test::source_dir() / "data/tiny-style" / (std::string(name) + extension);
      if (std::filesystem::exists(file)) std::filesystem::copy_file(file, folder / file.filename());
    }
}

// All arguments except a flag and its one value.
inline std::vector<std::string> without(std::vector<std::string> all, const std::string& flag) {
  const auto given = std::find(all.begin(), all.end(), flag);
  if (given != all.end()) all.erase(given, given + 2);
  return all;
}

// The first arguments, replaced by those in `more` where they are given there too, and then the rest of `more`.
inline std::vector<std::string> with_flags(std::vector<std::string> all, const std::vector<std::string>& more) {
  for (const std::string& a : more)
    if (a.starts_with("--")) all = without(all, a);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// The lines of a run's metrics.jsonl, without the values that differ from run to run.
inline std::vector<std::string> logged(const std::filesystem::path& output) {
  std::vector<std::string> all;
  std::istringstream text(read_plain(output / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) all.push_back(line.substr(0, line.find(",\"seconds\"")));
  return all;
}

// The tensors, to which "the same bits" applies: metadata hold times.
inline std::string tensors_of(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, info] : file.tensors()) tensors[name] = file.load(name);
  return sha256_of_tensors(tensors);
}

// Whether a killed run had reached its folder: only then there is something to --resume.
inline bool has_run(const std::filesystem::path& output) { return std::filesystem::exists(output / "state/lock"); }

inline void expect_one_line(const Outcome& outcome, std::initializer_list<std::string_view> parts) {
  EXPECT_GE(outcome.code, 1) << outcome.out;
  EXPECT_LE(outcome.code, 127) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  for (const std::string_view part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err << part;
}

}  // namespace wick
