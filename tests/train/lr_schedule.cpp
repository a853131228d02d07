// Learning rates against the closed forms of diffusers' get_scheduler().
#include "wick/train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace wick {
namespace {

double factor(LrSchedule schedule, int64_t step, double warmup = 4, int64_t steps = 20, int64_t cycles = 1,
              double power = 1, double lr = 1e-4) {
  TrainConfig config;
  config.lr_schedule = schedule;
  config.warmup.value = warmup;
  config.steps = steps;
  config.lr_scheduler_num_cycles = cycles;
  config.lr_scheduler_power = power;
  config.lr = lr;
  return lr_factor(config, step);
}

constexpr LrSchedule kAll[] = {LrSchedule::constant, LrSchedule::linear, LrSchedule::cosine,
                               LrSchedule::cosine_with_restarts, LrSchedule::polynomial};

TEST(LrSchedule, ClimbsToOneOverTheWarmUp) {
  for (const LrSchedule schedule : kAll) {
    EXPECT_EQ(factor(schedule, 0), 0);
    EXPECT_EQ(factor(schedule, 1), 0.25);
    EXPECT_EQ(factor(schedule, 3), 0.75);
    EXPECT_EQ(factor(schedule, 4), 1);
    EXPECT_EQ(factor(schedule, 0, 0), 1) << "without a warm-up";
    for (const int64_t step : {0, 2, 5, 11})
      EXPECT_EQ(factor(schedule, step, 0.2), factor(schedule, step)) << "a share";
  }
}

TEST(LrSchedule, FallsAsItsNameSays) {
  EXPECT_EQ(factor(LrSchedule::constant, 19), 1);
  EXPECT_EQ(factor(LrSchedule::linear, 8), 1 - 4.0 / 16);
  EXPECT_EQ(factor(LrSchedule::linear, 20), 0);
  EXPECT_DOUBLE_EQ(factor(LrSchedule::cosine, 8), 0.5 * (1 + std::cos(M_PI / 4)));
  EXPECT_NEAR(factor(LrSchedule::cosine, 20), 0, 1e-15);
}

// Numbers of diffusers 0.39's get_cosine_with_hard_restarts_schedule_with_warmup(warm-up 4, steps 20, cycles 3) and
// get_polynomial_decay_schedule_with_warmup(power 2) with a rate of 1e-4.
TEST(LrSchedule, RestartsAndPowersAreThoseOfDiffusers) {
  const std::pair<int64_t, double> restarts[] = {{5, 0.9157348061512727},
                                                 {9, 0.0096073597983847847},
                                                 {10, 0.96193976625564337},
                                                 {19, 0.084265193848727271},
                                                 {20, 0}};
  for (const auto& [step, want] : restarts)
    EXPECT_NEAR(factor(LrSchedule::cosine_with_restarts, step, 4, 20, 3), want, 1e-12) << step;
  const std::pair<int64_t, double> powers[] = {
      {5, 0.8790273437500001}, {12, 0.25074999999999998}, {19, 0.00490234375}, {20, 0.001}, {25, 0.001}};
  for (const auto& [step, want] : powers)
    EXPECT_NEAR(factor(LrSchedule::polynomial, step, 4, 20, 1, 2), want, 1e-12) << step;
}

TEST(LrSchedule, StaysAtItsEnd) {
  EXPECT_EQ(factor(LrSchedule::linear, 30), 0);
  EXPECT_EQ(factor(LrSchedule::linear, 25, 20), 0) << "a warm-up as long as the run";
  EXPECT_NEAR(factor(LrSchedule::cosine, 30), 0, 1e-15);
}

}  // namespace
}  // namespace wick
