#include "wick/core/named_tensors.h"

#include <gtest/gtest.h>

namespace wick {
namespace {

TEST(NamedTensors, AreFoundByNameAndKeepTheirOrder) {
  NamedTensors tensors{{"b", Tensor::of(std::vector<float>{1}, {1})}};
  tensors.add("a", Tensor::of(std::vector<float>{2}, {1}));
  EXPECT_EQ(tensors["a"].item(), 2);
  EXPECT_TRUE(tensors.has("b"));
  EXPECT_EQ(tensors.begin()->name, "b");
  EXPECT_EQ(tensors.size(), 2u);
  NamedTensors both{{"c", {}}};
  both.add(tensors);
  EXPECT_EQ(both.size(), 3u);
  EXPECT_THROW(both.add("c", {}), Error);
  EXPECT_THROW(tensors["c"], Error);
}

}  // namespace
}  // namespace wick
