#include <gtest/gtest.h>

#include <cmath>

#include "wick/ops/ops.h"

namespace wick {
namespace {

// Differences would be wrong across the bounds, so the table's rows stay clear of them.
TEST(Clamp, StopsAtTheBoundsAndKeepsNan) {
  const Tensor x = Tensor::of(std::vector<float>{-3, -1, 0.5f, 2, 5, NAN}, {6}).trainable();
  Tape tape;
  const Tensor y = clamp(x, -1, 2);
  const std::vector<float> values = y.to_vector();
  EXPECT_EQ(std::vector<float>(values.begin(), values.end() - 1), (std::vector<float>{-1, -1, 0.5f, 2, 2}));
  EXPECT_TRUE(std::isnan(values.back()));
  EXPECT_EQ(tape.backward(sum(y))[x].to_vector(), (std::vector<float>{0, 1, 1, 1, 0, 0}));
  EXPECT_THROW(clamp(x, 1, 0), Error);
}

}  // namespace
}  // namespace wick
