#include "wick/nn/layers.h"

#include <gtest/gtest.h>

namespace wick {
namespace {

Tensor random(const Shape& shape, uint64_t seed) {
  Rng rng(seed);
  return random_normal(shape, rng);
}

TEST(Linear, AFrozenOneSavesNothing) {
  const Linear frozen(random({64, 32}, 1), random({64}, 2));
  const Tensor x = random({256, 32}, 3).trainable();
  Tape tape;
  Tensor y = frozen(x);
  const size_t before = host_memory().in_use();
  {
    const Tensor keep_input = x;
    y = Tensor();
  }
  EXPECT_EQ(before - host_memory().in_use(), size_t{256} * 64 * 4);  // the tape holds neither x nor y
  EXPECT_EQ(tape.size(), 1u);
}

TEST(Linear, ServesTrainableWeights) {
  const Tensor w = random({2, 3}, 1).trainable(), b = random({2}, 2).trainable();
  const Linear layer(w, b);
  const Tensor x = random({5, 3}, 3);
  Tape tape;
  const Grads grads = tape.backward(sum(layer(x)));
  ASSERT_TRUE(grads[w]);
  EXPECT_EQ(grads[b].to_vector(), (std::vector<float>{5, 5}));
}

}  // namespace
}  // namespace wick
