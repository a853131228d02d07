// How a run shows where it is: one line that is written over on a terminal, else a plain line now and then.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace wick {

class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { close(); }
  // On a terminal at most some times a second, and as much as fits in its line: parts that two spaces separate go as a
  // whole, the last one first. Elsewhere every ten seconds, from ten seconds after the start on. `always` shows it in
  // any case.
  void show(const std::string& text, bool always = false);
  void say(const std::string& text);  // a line that stays
  void close();                       // what follows starts on a new line
  void clear();                       // what was shown last goes from the terminal

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_, open_ = false;
  Clock::time_point last_;
};

// The parts of a text that fit in so many columns.
std::string fitted(std::string text, size_t columns);
std::string duration(double seconds);  // "41 s", "2:31", "1:02:03"

}  // namespace wick
