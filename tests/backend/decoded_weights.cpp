#include "wick/backend/decoded_weights.h"

#include <gtest/gtest.h>

namespace wick {
namespace {

class DecodedWeightsTest : public testing::Test {
 protected:
  // `rows` of a weight that lies at `place`.
  Tensor operator()(const Tensor& weight, int64_t rows) {
    return weights_(weight.window({rows, weight.dim(1)}, weight.stride()), DType::f32, host_memory(),
                    [this](const View&) { ++decoded; });
  }

  DecodedWeights weights_;
  int decoded = 0;
};

TEST_F(DecodedWeightsTest, AreKeptForOneUse) {
  const Tensor a = Tensor::empty({4, 8}), b = Tensor::empty({4, 8});
  const auto used = [&](const Tensor& weight, int64_t rows = 4) {
    (*this)(weight, rows);
    return decoded;
  };
  EXPECT_EQ(used(a), 1);
  EXPECT_EQ(used(a), 2) << "nothing is kept yet";
  weights_.keep(true);
  EXPECT_EQ(used(a), 3);
  EXPECT_EQ(used(b), 4);
  EXPECT_EQ(used(a), 4);
  EXPECT_EQ(used(a), 5) << "it was given away";
  EXPECT_EQ(used(b, 2), 6) << "another weight in the same place";
  weights_.keep(false);
  EXPECT_EQ(used(a), 7);
}

TEST_F(DecodedWeightsTest, AreKeptWhereThereIsRoom) {
  weights_.keep(true);
  const size_t before = host_memory().in_use();
  std::vector<Tensor> all;
  for (int i = 0; i < 12; ++i) all.push_back(Tensor::empty({1024, 8192}));  // 32 MiB each
  const size_t held = host_memory().in_use();
  for (const Tensor& weight : all) (*this)(weight, 1024);
  EXPECT_EQ(decoded, 12);
  EXPECT_EQ(host_memory().in_use() - held, DecodedWeights::kRoom);
  for (const Tensor& weight : all) (*this)(weight, 1024);
  EXPECT_EQ(decoded, 14);
  weights_.keep(false);
  EXPECT_EQ(host_memory().in_use(), held);
  all.clear();
  EXPECT_EQ(host_memory().in_use(), before);
}

}  // namespace
}  // namespace wick
