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

TEST(Progress, NumbersStayInTwentyColumns) {
  // A column a character, "…" too.
  EXPECT_EQ(fitted("Encoding pictures: 24 of 24", 19), "Encoding…: 24 of 24");
  EXPECT_EQ(fitted("step 120: preview 1 of 2  3/30", 19), "st…: preview 1 of 2");
  EXPECT_EQ(fitted("step 12345/100000  loss 0.1", 19), "step 12345/100000");
  EXPECT_EQ(fitted("Encoding pictures: 24 of 24", 5), "Encod");
}

TEST(Progress, CharactersAreNotCutInTwo) {
  EXPECT_EQ(fitted("3 × 4", 5), "3 × 4");
  EXPECT_EQ(fitted("3 × 4", 3), "3 ×");
  EXPECT_EQ(fitted("3 × 4", 2), "3 ");
}

}  // namespace
}  // namespace wick
