#include "wick/train/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <sstream>

#include "wick/io/quote.h"

namespace wick {
namespace {

// A reader that has gone away must not end a run: what cannot be written is let go.
void put(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

ProgressLine::ProgressLine() : terminal_(isatty(STDOUT_FILENO) != 0) {}

void ProgressLine::show(const std::string& text, bool always) {
  const auto now = Clock::now();
  const double pause = terminal_ ? 0.1 : 10;
  if (!always && std::chrono::duration<double>(now - last_).count() < pause) return;
  last_ = now;
  if (terminal_) {
    put("\r" + printable(text) + "\x1b[K");
    open_ = true;
  } else {
    put(printable(text) + "\n");
  }
}

void ProgressLine::say(const std::string& text) {
  close();
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) put(printable(line) + "\n");
}

void ProgressLine::close() {
  if (open_) put("\n");
  open_ = false;
}

std::string duration(double seconds) {
  const auto whole = int64_t(std::lround(std::fmax(0, seconds)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace wick
