#include "wick/train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "wick/io/quote.h"

namespace wick {
namespace {

bool begins_character(char c) { return (uint8_t(c) & 0xc0) != 0x80; }  // in UTF-8

size_t width_of(const std::string& text) { return size_t(std::count_if(text.begin(), text.end(), begins_character)); }

// The terminal's current columns: it may be made narrower at any time. The last one stays free, so that no line wraps.
size_t usable_columns(int terminal) {
  winsize size{};
  constexpr size_t kUsual = 80;
  return (ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size_t{size.ws_col} : kUsual) - 1;
}

}  // namespace

ProgressLine::ProgressLine(std::FILE* out, double quiet_seconds)
    : out_(out), terminal_(isatty(fileno(out)) != 0), silent_(out == stderr && !terminal_) {
  const auto now = Clock::now();
  if (!terminal_) last_ = now;
  quiet_until_ = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(quiet_seconds));
}

// A reader that has gone away must not end a run: failed writes are ignored.
void ProgressLine::put(const std::string& text) const {
  std::fputs(text.c_str(), out_);
  std::fflush(out_);
}

void ProgressLine::show(const std::string& text, bool always) {
  const auto now = Clock::now();
  const double pause = terminal_ ? 0.1 : 10;
  if (silent_ || now < quiet_until_) return;
  if (!always && std::chrono::duration<double>(now - last_).count() < pause) return;
  last_ = now;
  if (terminal_) {
    put("\r" + fitted(printable(text), usable_columns(fileno(out_))) + "\x1b[K");
    open_ = true;
  } else {
    put(printable(text) + "\n");
  }
}

void ProgressLine::say(const std::string& text) {
  if (silent_) return;
  close();
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) put(printable(line) + "\n");
}

void ProgressLine::close() {
  if (open_) put("\n");
  open_ = false;
}

void ProgressLine::clear() {
  if (open_) put("\r\x1b[K");
  open_ = false;
}

std::string fitted(std::string text, size_t columns) {
  const auto width = [&] { return width_of(text); };
  for (size_t end; width() > columns && (end = text.rfind("  ")) != text.npos;) text.resize(end);
  // Of "Encoding pictures: 3 of 24" the words go before the numbers.
  const size_t colon = text.find(": ");
  if (width() > columns && colon != text.npos) {
    const std::string tail = "…" + text.substr(colon);
    const size_t room = width_of(tail);
    if (room < columns) return fitted(text.substr(0, colon), columns - room) + tail;
  }
  while (width() > columns) text.pop_back();
  return text;
}

std::string duration(double seconds) {
  const auto whole = int64_t(std::lround(std::fmax(0, seconds)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace wick
