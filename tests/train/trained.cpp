// A Trained without an objective: one LoRA of one linear, and its whole weight.
#include "wick/train/trained.h"

#include <gtest/gtest.h>

#include "wick/nn/layers.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

Weights weights(bool trainable) {
  return Weights::of({{"proj.weight", Tensor::of(std::vector<float>{1, 2, 3, 4}, {2, 2})}}, {.trainable = trainable});
}
Linear linear_of(const Weights& w, Adapter* adapter) { return {Scope(w, "model", adapter) / "proj", 2, 2, false}; }

TrainConfig config(double dropout) {
  TrainConfig c;
  c.rank = 2, c.alpha = 1, c.lora_dropout = dropout;
  return c;
}
Trained lora(const TrainConfig& c) {
  return {c, [](const std::string& path) { return std::vector<ModuleName>{path}; }, {"*"}, false};
}

TEST(Trained, ALoraIsDescribedAndWritten) {
  const Trained trained = lora(config(0));
  const Linear proj = linear_of(weights(false), trained.adapter());
  EXPECT_EQ(trained.describe(), "A LoRA of rank 2 on 1 module, 8 parameters");
  EXPECT_EQ(trained.parameters().size(), 2u);
  const auto write = [](const std::map<std::string, Tensor>& tensors) {
    EXPECT_EQ(tensors.at("model.proj.lora_up.weight").dtype(), DType::f16);
    return fs::path("a file");
  };
  EXPECT_EQ(trained.save(DType::f16, write, {}), "a file");
}

TEST(Trained, WholeWeightsAreDescribedAndWritten) {
  Trained trained({}, "The whole model");
  EXPECT_EQ(trained.adapter(), nullptr);
  const Weights all = weights(true);
  const Linear proj = linear_of(all, nullptr);
  trained.set_weights(all);
  EXPECT_EQ(trained.describe(), "The whole model, 4 parameters");
  ASSERT_EQ(trained.parameters().size(), 1u);
  EXPECT_EQ(trained.parameters()[0].name, "proj.weight");
  const auto write = [](const Weights& weights) { return fs::path(weights.has("proj.weight") ? "a folder" : ""); };
  EXPECT_EQ(trained.save(DType::f32, {}, write), "a folder");
}

TEST(Trained, ABatchDrawsWhatIsDroppedOut) {
  const Trained trained = lora(config(0.5));
  const Linear proj = linear_of(weights(false), trained.adapter());
  for (const Parameter& p : trained.parameters()) p.value.backend().fill(p.value, 1);
  const Tensor x = full({64, 2}, 1);
  TrainRng rng(0);
  trained.begin_batch(rng);
  const std::vector<float> first = proj(x).to_vector();
  EXPECT_EQ(proj(x).to_vector(), first);
  trained.begin_batch(rng);
  EXPECT_NE(proj(x).to_vector(), first);
  EXPECT_EQ(rng.dropout.position(), 2u);

  trained.pause(true);
  for (const float y : slice(proj(x), 1, 0, 1).to_vector()) EXPECT_EQ(y, 1 + 2 + 2 * 2 * 0.5f);
  trained.pause(false);
  EXPECT_NE(proj(x).to_vector(), first);

  Trained({}, "The whole model").begin_batch(rng);  // takes no number
  EXPECT_EQ(rng.dropout.position(), 2u);
}

}  // namespace
}  // namespace wick
