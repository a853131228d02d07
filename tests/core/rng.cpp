// Philox4x32-10 against Random123's known answers (kat_vectors), and the distributions built on it.
#include "wick/core/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace wick {
namespace {

using Block = std::array<uint32_t, 4>;

TEST(Philox, KnownAnswer) { EXPECT_EQ(philox(0, 0, 0), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8})); }

TEST(Philox, EveryArgumentMatters) {
  const Block base = philox(7, 3, 11);
  EXPECT_NE(philox(8, 3, 11), base);
  EXPECT_NE(philox(7 + (uint64_t{1} << 32), 3, 11), base);
  EXPECT_NE(philox(7, 4, 11), base);
  EXPECT_NE(philox(7, 3, 12), base);
  EXPECT_NE(philox(7, 3, 11 + (uint64_t{1} << 32)), base);
  EXPECT_EQ(philox(7, 3, 11), base);
}

TEST(Rng, ResumesFromItsThreeNumbers) {
  Rng a(42, Stream::noise);
  for (int i = 0; i < 5; ++i) a.normal();
  Rng b(a.seed(), Stream(a.stream()), a.position());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(a.normal(), b.normal());
}

TEST(Rng, ReservedBlocksAreNotDrawnAgain) {
  Rng a(1), b(1);
  EXPECT_EQ(a.reserve(3), 0u);
  for (int i = 0; i < 3; ++i) b.uniform();
  EXPECT_EQ(a.uniform(), b.uniform());
}

TEST(Rng, UniformStaysBelowOne) {
  EXPECT_EQ(bits_to_uniform(0), 0.0f);
  EXPECT_LT(bits_to_uniform(0xffffffffu), 1.0f);
  Rng rng(3);
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) sum += rng.uniform();
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);
}

TEST(Rng, NormalHasMeanZeroAndVarianceOne) {
  Rng rng(4);
  double sum = 0, squares = 0, fourth = 0;
  constexpr int kCount = 200'000;
  for (int i = 0; i < kCount; ++i) {
    const double x = rng.normal();
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
  EXPECT_NEAR(fourth / kCount, 3, 0.1);
  for (uint32_t extreme : {0u, 0xffffffffu})
    for (float value : bits_to_normals(extreme, extreme)) EXPECT_TRUE(std::isfinite(value));
}

TEST(Rng, BelowIsEvenAndInRange) {
  Rng rng(5);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70'000; ++i) {
    const uint64_t value = rng.below(7);
    ASSERT_LT(value, 7u);
    ++counts[value];
  }
  for (int count : counts) EXPECT_NEAR(count, 10'000, 500);
  EXPECT_EQ(rng.below(1), 0u);
}

}  // namespace
}  // namespace wick
