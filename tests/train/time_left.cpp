// The estimate of the time left appears after enough steps. It is then correct within a third.
#include "wick/train/time_left.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "wick/core/rng.h"

namespace wick {
namespace {

using Times = std::vector<double>;  // of steps, in seconds

Times times_of(int64_t steps, const std::function<double(int64_t)>& of) {
  Times times;
  for (int64_t i = 0; i < steps; ++i) times.push_back(of(i));
  return times;
}

struct Told {
  int64_t first = -1;  // the step behind which an estimate came first
  int64_t count = 0, wrong = 0;
};

// Every estimate, but those of the last steps and of so many behind a change of the machine's load.
Told told_of(const Times& times, int64_t change = -1) {
  const auto steps = std::ssize(times);
  double left = 0;
  for (const double time : times) left += time;
  TimeLeft clock(steps);
  Told told;
  for (int64_t i = 0; i < steps; ++i) {
    left -= times[size_t(i)];
    clock.step(i + 1, times[size_t(i)]);
    const std::optional<double> estimate = clock.seconds_left();
    if (!estimate || steps - i < 50) continue;
    if (told.first < 0) told.first = i + 1;
    if (change >= 0 && i < change + TimeLeft::kNewest) continue;
    ++told.count;
    told.wrong += std::abs(*estimate / left - 1) > 1.0 / 3;
  }
  return told;
}

void expect_right(const Times& times, int64_t change = -1) {
  const Told told = told_of(times, change);
  EXPECT_GT(told.first, TimeLeft::kWarmUp);
  EXPECT_GT(told.count, 0);
  EXPECT_EQ(told.wrong, 0) << "of " << told.count;
}

TEST(TimeLeft, SteadySteps) {
  expect_right(times_of(500, [](int64_t) { return 0.1; }));
  expect_right(times_of(100000, [](int64_t) { return 0.001; }));
  const Told slow = told_of(times_of(200, [](int64_t) { return 30.0; }));
  EXPECT_EQ(slow.first, TimeLeft::kWarmUp + 4) << "four steps of 30 s are enough";
  EXPECT_EQ(slow.wrong, 0);
}

TEST(TimeLeft, SlowFirstSteps) {
  expect_right(times_of(1500, [](int64_t i) { return i == 0 ? 30 : 0.1; }));
  expect_right(times_of(1500, [](int64_t i) { return i < 3 ? 10.0 / double(i + 1) : 0.1; }));
}

TEST(TimeLeft, AMachineThatIsBusyFromTheMiddleOn) {
  expect_right(times_of(1000, [](int64_t i) { return i < 500 ? 0.1 : 0.5; }), 500);
  expect_right(times_of(1000, [](int64_t i) { return i < 500 ? 0.5 : 0.1; }), 500);
}

// As on two cores that eight busy loops share: some steps wait for others' slices, most do not.
TEST(TimeLeft, ABusyMachine) {
  Rng rng(7);
  const Times times =
      times_of(2000, [&](int64_t) { return 0.1 + (rng.uniform() < 0.3f ? 0.4 * double(rng.uniform()) : 0); });
  const Told told = told_of(times);
  EXPECT_GT(told.count, 1000);
  EXPECT_LE(told.wrong, told.count / 100) << "three deviations";
}

// There is no estimate until the standard error of the mean is below a ninth of the mean.
TEST(TimeLeft, NoneIsToldWhereStepsDifferTooMuch) {
  TimeLeft clock(100);
  for (int64_t i = 1; i <= 40; ++i) {
    clock.step(i, i % 10 == 0 ? 50 : 0.1);
    EXPECT_FALSE(clock.seconds_left()) << i;
  }
}

TEST(TimeLeft, NoneIsToldOfAFewShortSteps) {
  TimeLeft clock(100);
  for (int64_t i = 1; i <= 12; ++i) {
    clock.step(i, 0.1);
    EXPECT_FALSE(clock.seconds_left()) << i;
  }
}

TEST(TimeLeft, WorkBetweenStepsCounts) {
  TimeLeft clock(100);
  clock.expect(Between::preview, 0.1);
  clock.expect(Between::save, 0);
  clock.took(Between::preview, 20);
  for (int64_t i = 1; i <= 20; ++i) clock.step(i, 1);
  EXPECT_NEAR(*clock.seconds_left(), 80 + 8 * 20, 1e-9);
  clock.took(Between::save, 5);
  EXPECT_NEAR(*clock.seconds_left(), 80 + 8 * 20 + 5, 1e-9) << "of the last step";
  for (int64_t i = 21; i <= 100; ++i) clock.step(i, 1);
  EXPECT_EQ(*clock.seconds_left(), 0);
}

}  // namespace
}  // namespace wick
