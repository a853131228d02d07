// The output of a run in progress.
#include "wick/train/progress.h"

#include <gtest/gtest.h>

namespace wick {
namespace {

TEST(Progress, PartsGoAsAWholeWhereALineIsTooNarrow) {
  const std::string line = "step 1/20  loss 1.2500 (average 1.5)  2 steps/s  9 s left";
  EXPECT_EQ(fitted(line, 80), line);
  EXPECT_EQ(fitted(line, line.size()), line);
  EXPECT_EQ(fitted(line, line.size() - 1), "step 1/20  loss 1.2500 (average 1.5)  2 steps/s");
  EXPECT_EQ(fitted(line, 40), "step 1/20  loss 1.2500 (average 1.5)");
  EXPECT_EQ(fitted(line, 10), "step 1/20");
  EXPECT_EQ(fitted(line, 3), "ste");
  EXPECT_EQ(fitted(line, 0), "");
}

TEST(Progress, CharactersAreNotCutInTwo) {
  EXPECT_EQ(fitted("3 × 4", 5), "3 × 4");
  EXPECT_EQ(fitted("3 × 4", 3), "3 ×");
  EXPECT_EQ(fitted("3 × 4", 2), "3 ");
}

}  // namespace
}  // namespace wick
