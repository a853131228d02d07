// SwiGLU of a linear with a LoRA, for inference.
#include "wick/ops/lora.h"

#include <gtest/gtest.h>

#include "wick/core/error.h"
#include "wick/ops/gated.h"
#include "wick/ops/random.h"

namespace wick {
namespace {

TEST(LoraGatedLinear, HasTheBitsOfItsParts) {
  Rng rng(5);
  const Tensor x = random_normal({3, 12}, rng), w = random_normal({16, 12}, rng), bias = random_normal({16}, rng);
  const Lora lora = Lora::of(random_normal({4, 12}, rng), random_normal({16, 4}, rng), 0.5f);
  const Tensor y = lora_gated_linear(x, w, bias, lora);
  EXPECT_EQ(y.to_vector(), swiglu(lora_linear(x, w, bias, lora)).to_vector());
  const Lora wide = Lora::of(random_normal({4, 13}, rng), random_normal({16, 4}, rng), 0.5f);
  EXPECT_THROW(lora_gated_linear(x, w, bias, wide), Error);
  Tape tape;
  EXPECT_THROW(lora_gated_linear(x, w, bias, lora), Error);
}

}  // namespace
}  // namespace wick
