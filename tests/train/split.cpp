// Which pictures are held back: as kohya's scripts choose them.
#include "wick/train/split.h"

#include <gtest/gtest.h>

namespace wick {
namespace {

using Indices = std::vector<size_t>;

// random.seed(seed); random.shuffle(x) of CPython 3.11.
TEST(Split, ShufflesAsPythonDoes) {
  EXPECT_EQ(python_shuffle(10, 0), (Indices{7, 8, 1, 5, 3, 4, 2, 0, 9, 6}));
  EXPECT_EQ(python_shuffle(7, 42), (Indices{1, 3, 4, 2, 6, 0, 5}));
  EXPECT_EQ(python_shuffle(12, (uint64_t{1} << 40) + 5), (Indices{3, 5, 2, 9, 6, 7, 1, 10, 0, 4, 11, 8}));
  const Indices many = python_shuffle(1000, 1234);  // more draws than the generator has words
  EXPECT_EQ(Indices(many.begin(), many.begin() + 6), (Indices{56, 306, 558, 770, 733, 654}));
}

// Counts of split_train_val() in sd-scripts' library/train_util.py.
TEST(Split, HoldsBackTheLastOfThem) {
  struct Row {
    size_t count;
    double share;
    size_t trained, held_back;
  };
  for (const Row& row : {Row{10, 0.1, 9, 1}, {10, 0.25, 8, 2}, {5, 0.1, 5, 0}, {3, 0.1, 3, 0}, {30, 0.15, 26, 4}}) {
    SCOPED_TRACE(row.count);
    EXPECT_EQ(chosen(row.count, {.held_back = row.share}).size(), row.trained);
    EXPECT_EQ(chosen(row.count, {.held_back = row.share, .validates = true}).size(), row.held_back);
  }
  EXPECT_EQ(chosen(10, {.held_back = 0.25, .seed = 0}), (Indices{0, 1, 2, 3, 4, 5, 7, 8}));
  EXPECT_EQ(chosen(10, {.held_back = 0.25, .seed = 0, .validates = true}), (Indices{6, 9}));
  EXPECT_EQ(chosen(7, {.held_back = 0.5}).size(), 4u);
  EXPECT_EQ(chosen(7, {.held_back = 0.5, .validates = true}).size(), 3u) << "none is both";
}

}  // namespace
}  // namespace wick
