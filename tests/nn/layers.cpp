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

// Without a tape in one operation, under one in two.
TEST(Linear, GatedWithALoraHasTheBitsOfItsParts) {
  const Tensor x = random({3, 12}, 1), w = random({16, 12}, 2), b = random({16}, 3);
  const Tensor down = random({4, 12}, 4), up = random({16, 4}, 5);
  const Lora lora = Lora::of(down, up, 0.5f);
  AdapterModule module{"", {12, 16}, &lora_algorithm(), {{"", down}, {"", up}}};
  module.scale = 0.5f;
  const Linear layer(w, b,
                     std::make_shared<AdapterStack>(std::vector{lora_algorithm().layer({{&module, 0}}, 16, {}, {})}));
  const std::vector<float> want = swiglu(lora_linear(x, w, b, lora)).to_vector();
  EXPECT_EQ(layer.gated(x).to_vector(), want);
  Tape tape;
  const Tensor tracked = x.trainable();
  const Tensor y = layer.gated(tracked);
  EXPECT_TRUE(y.tracked());
  EXPECT_EQ(y.to_vector(), want);
  EXPECT_THROW(lora_gated_linear(x, w, b, lora), Error);
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
