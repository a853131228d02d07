#include "wick/io/count.h"

#include <gtest/gtest.h>

namespace wick {
namespace {

TEST(Count, OneIsNotMany) {
  EXPECT_EQ(fmt::format("{} of {}", count_of(1, "row"), count_of(size_t{2}, "token")), "1 row of 2 tokens");
  EXPECT_EQ(fmt::format("{}", count_of(int64_t{0}, "step")), "0 steps");
  EXPECT_EQ(noun_of(1, "parameter"), "parameter");
  EXPECT_EQ(noun_of(2567463684, "parameter"), "parameters");
}

}  // namespace
}  // namespace wick
