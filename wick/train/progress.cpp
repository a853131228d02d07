#include "wick/train/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace wick {

ProgressLine::ProgressLine() : terminal_(isatty(STDOUT_FILENO) != 0) {}

void ProgressLine::show(const std::string& text, bool always) {
  const auto now = Clock::now();
  const double pause = terminal_ ? 0.1 : 10;
  if (!always && std::chrono::duration<double>(now - last_).count() < pause) return;
  last_ = now;
  if (terminal_) {
    fmt::print("\r{}\x1b[K", text);
    open_ = true;
  } else {
    fmt::print("{}\n", text);
  }
  std::fflush(stdout);
}

void ProgressLine::say(const std::string& text) {
  close();
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void ProgressLine::close() {
  if (open_) fmt::print("\n");
  open_ = false;
}

std::string duration(double seconds) {
  const auto whole = int64_t(std::lround(std::fmax(0, seconds)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace wick
