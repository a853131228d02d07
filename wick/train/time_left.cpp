#include "wick/train/time_left.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace wick {
namespace {

struct Sample {
  double count, mean, error;  // the standard error of the mean
};

template <class Iterator>
Sample sample_of(Iterator begin, Iterator end) {
  const auto count = double(std::distance(begin, end));
  double sum = 0, squares = 0;
  for (auto i = begin; i != end; ++i) sum += *i;
  const double mean = sum / count;
  for (auto i = begin; i != end; ++i) squares += (*i - mean) * (*i - mean);
  return {count, mean, count > 1 ? std::sqrt(squares / (count - 1) / count) : mean};
}

}  // namespace

void TimeLeft::took(Between work, double seconds) {
  Work& one = work_[work];
  ++one.count;
  one.seconds += seconds;
}

void TimeLeft::step(int64_t number, double seconds) {
  done_ = number;
  if (++counted_ <= kWarmUp) return;
  recent_.push_back(seconds);
  if (recent_.size() > kRecent) recent_.pop_front();
  drop_older();
}

// Where the mean of the newest steps is a quarter off that of the steps before, by three standard errors of the two.
void TimeLeft::drop_older() {
  if (std::ssize(recent_) < 2 * kNewest) return;
  const auto cut = recent_.end() - kNewest;
  const Sample before = sample_of(recent_.begin(), cut), now = sample_of(cut, recent_.end());
  const double apart = std::abs(now.mean - before.mean);
  if (apart > 3 * std::hypot(before.error, now.error) && apart > before.mean / 4) recent_.erase(recent_.begin(), cut);
}

std::optional<double> TimeLeft::seconds_per_step() const {
  constexpr size_t kFewestLong = kFewest / 2;
  constexpr double kLong = 10 * kLeast;
  if (recent_.size() < kFewestLong) return {};
  const Sample sample = sample_of(recent_.begin(), recent_.end());
  const double seconds = sample.mean * sample.count;
  const bool is_enough =
      seconds >= kLong || recent_.size() == kRecent || (seconds >= kLeast && recent_.size() >= kFewest);
  if (!is_enough || 9 * sample.error > sample.mean) return {};
  return sample.mean;
}

std::optional<double> TimeLeft::seconds_left() const {
  const std::optional<double> step = seconds_per_step();
  if (!step) return {};
  const auto steps = double(steps_ - done_);
  double left = *step * steps;
  for (const auto& [kind, work] : work_)
    if (work.count > 0 && steps > 0) left += work.seconds / double(work.count) * std::max(1.0, work.per_step * steps);
  return left;
}

}  // namespace wick
