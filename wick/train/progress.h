// A run's progress: one line that is overwritten on a terminal, else a plain line now and then.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

namespace wick {

class ProgressLine {
 public:
  ProgressLine() : ProgressLine(stdout, 0) {}
  // For work that is short as a rule: nothing comes unless stderr is a terminal, and there nothing in the first second.
  static ProgressLine on_stderr() { return {stderr, 1}; }
  ~ProgressLine() { close(); }
  // On a terminal the line is drawn at most some times a second and cut to its width: parts separated by two spaces are
  // dropped whole, the last one first. Elsewhere a line comes every ten seconds, from ten seconds after the start on.
  // `always` shows it in any case.
  void show(const std::string& text, bool always = false);
  void say(const std::string& text);    // a line that stays
  void close();                         // later output starts on a new line
  void clear();                         // removes the last line shown from the terminal
  void be_silent() { silent_ = true; }  // from now on nothing is shown

 private:
  using Clock = std::chrono::steady_clock;
  ProgressLine(std::FILE* out, double quiet_seconds);
  void put(const std::string& text) const;

  std::FILE* out_;
  bool terminal_, open_ = false, silent_ = false;
  Clock::time_point last_, quiet_until_;
};

// As many parts of a text as fit in `columns`.
std::string fitted(std::string text, size_t columns);
std::string duration(double seconds);  // "41 s", "2:31", "1:02:03"

}  // namespace wick
