// Learning rates against the closed forms of diffusers' get_scheduler().
#include "wick/train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace wick {
namespace {

TEST(LrSchedule, ClimbsToOneOverTheWarmUp) {
  for (const LrSchedule schedule : {LrSchedule::constant, LrSchedule::linear, LrSchedule::cosine}) {
    EXPECT_EQ(lr_factor(schedule, 0, 4, 20), 0);
    EXPECT_EQ(lr_factor(schedule, 1, 4, 20), 0.25);
    EXPECT_EQ(lr_factor(schedule, 3, 4, 20), 0.75);
    EXPECT_EQ(lr_factor(schedule, 4, 4, 20), 1);
    EXPECT_EQ(lr_factor(schedule, 0, 0, 20), 1) << "without a warm-up";
  }
}

TEST(LrSchedule, FallsAsItsNameSays) {
  EXPECT_EQ(lr_factor(LrSchedule::constant, 19, 4, 20), 1);
  EXPECT_EQ(lr_factor(LrSchedule::linear, 8, 4, 20), 1 - 4.0 / 16);
  EXPECT_EQ(lr_factor(LrSchedule::linear, 20, 4, 20), 0);
  EXPECT_DOUBLE_EQ(lr_factor(LrSchedule::cosine, 8, 4, 20), 0.5 * (1 + std::cos(M_PI / 4)));
  EXPECT_NEAR(lr_factor(LrSchedule::cosine, 20, 4, 20), 0, 1e-15);
}

TEST(LrSchedule, StaysAtItsEnd) {
  EXPECT_EQ(lr_factor(LrSchedule::linear, 30, 4, 20), 0);
  EXPECT_EQ(lr_factor(LrSchedule::linear, 25, 20, 20), 0) << "a warm-up as long as the run";
  EXPECT_NEAR(lr_factor(LrSchedule::cosine, 30, 4, 20), 0, 1e-15);
}

}  // namespace
}  // namespace wick
