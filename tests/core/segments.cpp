#include "wick/core/segments.h"

#include <gtest/gtest.h>

#include <random>

namespace wick {
namespace {

constexpr size_t kUnit = Segments::kUnit;

TEST(Segments, TakeTheSmallestGapAndMergeNeighbours) {
  Segments segments;
  EXPECT_FALSE(segments.allocate(1));
  segments.add(kUnit, kUnit);
  const size_t a = *segments.allocate(1000), b = *segments.allocate(512), c = *segments.allocate(4096);
  EXPECT_EQ(a, kUnit);
  EXPECT_EQ(segments.size_of(a), 1024u);
  EXPECT_EQ(b, a + 1024);
  EXPECT_EQ(c, b + 512);
  EXPECT_EQ(*segments.allocate(1), c + 4096);
  segments.release(a);
  segments.release(c);
  EXPECT_EQ(*segments.allocate(1024), a);  // not the larger gap behind it
  EXPECT_EQ(*segments.allocate(1024), c);
  segments.release(a);
  segments.release(b);
  EXPECT_EQ(*segments.allocate(1536), a);  // both together
  EXPECT_FALSE(segments.allocate(kUnit));
}

TEST(Segments, StayApartAndAreGivenUpWhereNothingLiesInThem) {
  Segments segments;
  for (size_t i = 1; i <= 3; ++i) segments.add(i * kUnit, kUnit);
  const size_t a = *segments.allocate(kUnit), b = *segments.allocate(kUnit), c = *segments.allocate(kUnit);
  EXPECT_EQ(segments.taken(), 3 * kUnit);
  for (const size_t block : {a, b, c}) segments.release(block);
  EXPECT_FALSE(segments.allocate(kUnit + 1)) << "no block lies in two segments";
  EXPECT_EQ(*segments.allocate(5), a);
  EXPECT_EQ(segments.trim(), (std::vector<size_t>{b, c}));
  EXPECT_EQ(segments.taken(), kUnit);
  EXPECT_FALSE(segments.allocate(kUnit));
  EXPECT_TRUE(segments.trim().empty());
}

TEST(Segments, AreOfWholeUnits) {
  EXPECT_EQ(Segments::segment_for(0), kUnit);
  EXPECT_EQ(Segments::segment_for(kUnit), kUnit);
  EXPECT_EQ(Segments::segment_for(kUnit + 1), 2 * kUnit);
}

TEST(Segments, BlocksNeverOverlap) {
  std::mt19937_64 random(std::random_device{}());
  Segments segments;
  size_t next_segment = kUnit;
  std::map<size_t, size_t> blocks;
  for (int i = 0; i < 4000; ++i) {
    if (blocks.empty() || random() % 5 < 3) {
      const size_t bytes = random() % (random() % 4 ? 4096 : 2 * kUnit) + 1;
      std::optional<size_t> at = segments.allocate(bytes);
      if (!at) {
        segments.add(next_segment, Segments::segment_for(bytes));
        next_segment += Segments::segment_for(bytes);
        at = segments.allocate(bytes);
      }
      ASSERT_TRUE(at);
      const auto next = blocks.lower_bound(*at);
      if (next != blocks.end()) {
        EXPECT_LE(*at + bytes, next->first);
      }
      if (next != blocks.begin()) {
        EXPECT_LE(std::prev(next)->first + std::prev(next)->second, *at);
      }
      blocks[*at] = bytes;
    } else {
      const auto block = std::next(blocks.begin(), int64_t(random() % blocks.size()));
      segments.release(block->first);
      blocks.erase(block);
      if (random() % 50 == 0) segments.trim();
    }
  }
  for (const auto& [at, bytes] : blocks) segments.release(at);
  segments.trim();
  EXPECT_EQ(segments.taken(), 0u);
}

}  // namespace
}  // namespace wick
