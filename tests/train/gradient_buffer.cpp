// The buffer gets a LoRA's gradients without a copy from the second batch of a kind on.
#include "wick/train/gradient_buffer.h"

#include <gtest/gtest.h>

#include <limits>

#include "wick/ops/lora.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

// Two parts, whose downs are rows of one tensor, as of layers that share their input.
struct TwoParts {
  Rng rng{1};
  Tensor x = random_normal({5, 16}, rng), w = random_normal({16, 16}, rng), dy = random_normal({5, 16}, rng);
  Lora lora{random_normal({8, 16}, rng), {}};
  std::vector<Parameter> parameters;

  explicit TwoParts(int64_t ranks_of_first) {
    for (const auto& [row, rank, column, outputs] :
         {std::array{int64_t{0}, ranks_of_first, int64_t{0}, int64_t{6}},
          std::array{ranks_of_first, 8 - ranks_of_first, int64_t{6}, int64_t{10}}}) {
      const Tensor down = lora.down.window({rank, 16}, {16, 1}, row * 16).trainable(),
                   up = random_normal({outputs, rank}, rng).trainable();
      lora.parts.push_back({down, up, up, column, row, 0.5f});
      parameters.push_back({"down", down});
      parameters.push_back({"up", up});
    }
  }
  uint64_t id(size_t parameter) const { return parameters[parameter].value.id(); }
  void backward(Grads& grads) const {
    Tape tape;
    tape.backward(lora_linear(x, w, {}, lora), dy, grads);
  }
};

std::vector<std::vector<float>> values(const Grads& grads, const std::vector<Parameter>& parameters) {
  std::vector<std::vector<float>> all;
  for (const Parameter& p : parameters) all.push_back(grads[p.value].to_vector());
  return all;
}

TEST(GradientBuffer, GivesALorasGradientsTheirPlaces) {
  Ranks alone;
  RankWatch watch(alone);
  RankSums sums(alone, watch, cpu_backend());
  for (const int64_t rank : {4, 3}) {
    const TwoParts layer(rank);
    Grads want;
    layer.backward(want);
    GradientBuffer buffer(layer.parameters, &sums);
    for (int batch = 0; batch < 3; ++batch) {
      Grads grads;
      buffer.begin(grads, "kind", GradientBuffer::Place::alone);
      const Tensor downs = grads.room({layer.id(0), layer.id(2)}), ups = grads.room({layer.id(1), layer.id(3)});
      EXPECT_EQ(bool(downs), batch > 0);
      EXPECT_EQ(bool(ups), batch > 0);
      if (batch > 0) {
        EXPECT_EQ(downs.shape(), Shape{8 * 16});
        EXPECT_FALSE(grads.room({layer.id(2), layer.id(0)})) << "in another order";
        EXPECT_FALSE(grads.room({layer.x.trainable().id()})) << "no parameter";
        cpu_backend().fill(buffer.room(), std::numeric_limits<float>::quiet_NaN());
      }
      layer.backward(grads);
      buffer.end(grads);
      EXPECT_EQ(values(buffer.sums(), layer.parameters), values(want, layer.parameters)) << "batch " << batch;
    }
    Grads grads;
    buffer.begin(grads, "kind", GradientBuffer::Place::last);
    EXPECT_FALSE(grads.room({layer.id(0)})) << "something is there already";
    layer.backward(grads);
    buffer.end(grads);
  }
}

// The second addend of a parameter that is used twice would overwrite the first.
TEST(GradientBuffer, GivesNoPlaceForOneOfSeveralAddends) {
  Ranks alone;
  RankWatch watch(alone);
  RankSums sums(alone, watch, cpu_backend());
  const TwoParts layer(4);
  Grads want;
  const auto twice = [&](Grads& grads) {
    Tape tape;
    tape.backward(lora_linear(lora_linear(layer.x, layer.w, {}, layer.lora), layer.w, {}, layer.lora), layer.dy, grads);
  };
  twice(want);
  GradientBuffer buffer(layer.parameters, &sums);
  for (int batch = 0; batch < 2; ++batch) {
    Grads grads;
    buffer.begin(grads, "kind", GradientBuffer::Place::alone);
    EXPECT_FALSE(grads.room({layer.id(0)}));
    twice(grads);
    buffer.end(grads);
    EXPECT_EQ(values(buffer.sums(), layer.parameters), values(want, layer.parameters));
  }
}

}  // namespace
}  // namespace wick
