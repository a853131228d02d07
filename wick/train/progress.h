// How a run shows where it is: one line that is written over on a terminal, else a plain line now and then.
#pragma once

#include <chrono>
#include <string>

namespace wick {

class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { close(); }
  // On a terminal at most some times a second, elsewhere every ten seconds; `always` shows it in any case.
  void show(const std::string& text, bool always = false);
  void say(const std::string& text);  // a line that stays
  void close();                       // what follows starts on a new line

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_, open_ = false;
  Clock::time_point last_;
};

std::string duration(double seconds);  // "41 s", "2:31", "1:02:03"

}  // namespace wick
