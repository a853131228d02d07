// How long the rest of a run takes, from the steps that it did.
//
// The first steps are warm-up (caches, graphs, the clock of the processor) and do not count. The others are averaged
// over the most recent ones: the mean, since the time of many steps is their sum. There is an estimate once three
// standard errors are below a third of it. Where the newest steps differ clearly from those before them (another
// program began or ended), the older ones are dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

namespace wick {

// Work between steps.
enum class Between { save, preview, validation };

class TimeLeft {
 public:
  static constexpr int64_t kWarmUp = 3;     // steps that do not count
  static constexpr size_t kFewest = 8;      // steps that an estimate is made of; four where these took 20 s
  static constexpr size_t kRecent = 256;    // steps at the most
  static constexpr double kLeast = 2;       // seconds that they take together, where they are not so many
  static constexpr ptrdiff_t kNewest = 16;  // steps that show whether the machine has another load

  TimeLeft() = default;
  explicit TimeLeft(int64_t steps) : steps_(steps) {}  // of the whole run

  // So often behind a step, on average, and behind the last one in any case.
  void expect(Between work, double per_step) { work_[work].per_step = per_step; }
  void took(Between work, double seconds);
  void step(int64_t number, double seconds);  // of it alone

  // None until it is sound.
  std::optional<double> seconds_per_step() const;
  std::optional<double> seconds_left() const;

 private:
  struct Work {
    double per_step = 0, seconds = 0;
    int64_t count = 0;
  };
  void drop_older();

  int64_t steps_ = 0, done_ = 0, counted_ = 0;
  std::deque<double> recent_;
  std::map<Between, Work> work_;
};

}  // namespace wick
