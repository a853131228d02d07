#include "wick/models/t5.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/files.h"
#include "source_dir.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kModel = test::source_dir() / "tests/golden/t5/three/text_encoder_3";

auto sizes_of(const T5Config& c) {
  return std::tuple(c.vocab, c.hidden, c.head_dim, c.intermediate, c.layers, c.heads, c.buckets, c.max_distance, c.eps);
}

TEST(T5Config, ComesFromConfigOrTensorsOrBoth) {
  const auto whole = sizes_of(T5Config::read(kModel));
  EXPECT_EQ(whole, std::tuple(61, 16, 6, 36, 3, 4, 32, 128, 1e-6f));
  EXPECT_EQ(sizes_of(T5Config::read(kModel / "model.safetensors")), whole);  // a bare file
  const TemporaryDirectory folder;
  fs::copy(kModel / "config.json", folder / "config.json");
  EXPECT_EQ(sizes_of(T5Config::read(folder.path())), whole);  // a plan reads nothing else
}

// The model with some of its config changed; null removes a key.
void expect_config_error(const nlohmann::json& changes, std::initializer_list<std::string_view> parts) {
  const TemporaryDirectory folder;
  fs::copy(kModel, folder.path());
  nlohmann::json config = read_json(kModel / "config.json");
  config.update(changes);
  write_plain(folder / "config.json", config.dump());
  expect_error([&] { T5Config::read(folder.path()); }, parts);
}

TEST(T5Config, NamesBothWhereTheyContradict) {
  const std::string table = "\"shared.weight\"";
  expect_config_error({{"d_model", 24}}, {"config.json", "d_model is 24", table, "model.safetensors", "16"});
  expect_config_error({{"vocab_size", 32128}}, {"vocab_size is 32128", table, "61"});
  expect_config_error({{"num_layers", 4}}, {"num_layers is 4", "encoder.block.2.", "3"});
  expect_config_error({{"num_heads", 8}}, {"num_heads is 8", "relative_attention_bias", "4"});
  expect_config_error({{"d_kv", 64}}, {"d_kv is 64", "SelfAttention.q.weight", "6"});
  expect_config_error({{"d_ff", 37}}, {"d_ff is 37", "wi_0", "36"});
  expect_config_error({{"relative_attention_num_buckets", 16}}, {"buckets is 16", "relative_attention_bias", "32"});
}

TEST(T5Config, SaysWhatIsNotSupported) {
  expect_config_error({{"model_type", "umt5"}}, {"config.json", "model_type", "umt5", "t5"});
  expect_config_error({{"feed_forward_proj", "relu"}}, {"feed_forward_proj", "relu", "gated-gelu"});
  expect_config_error({{"feed_forward_proj", nullptr}}, {"feed_forward_proj", "relu", "gated-gelu"});
  expect_config_error({{"dense_act_fn", "silu"}}, {"dense_act_fn", "silu", "gelu_new"});
  expect_config_error({{"relative_attention_max_distance", 8}}, {"32 buckets", "distance of 8"});
}

TEST(T5Encoder, CheckpointingGivesTheSameGradients) {
  const Tensor ids = Tensor::of(std::vector<int64_t>{5, 60, 3, 7, 1, 0, 40, 2, 9, 1}, {2, 5}),
               mask = Tensor::of(std::vector<int64_t>{1, 1, 1, 1, 1, 0, 1, 1, 1, 1}, {2, 5});
  const auto gradients = [&](bool checkpointing) {
    const Weights weights(safetensors_source(kModel / "model.safetensors"), {.trainable = true});
    const T5Encoder encoder(Scope(weights, "t5"), T5Config::read(kModel),
                            BlockSchedule::recomputing_all(checkpointing));
    Tape tape;
    const Grads grads = tape.backward(mean(square(encoder(ids, mask))));
    std::map<std::string, std::vector<float>> all;
    for (const Parameter& p : weights.parameters()) all[p.name] = grads[p.value].to_vector();
    return all;
  };
  const auto kept = gradients(false), again = gradients(true);
  EXPECT_FALSE(kept.empty());
  EXPECT_EQ(again, kept);
}

// A bare file with one tensor more, or one less.
void expect_file_error(const std::string& added, const std::string& removed,
                       std::initializer_list<std::string_view> parts) {
  const SafetensorsFile file = SafetensorsFile::open(kModel / "model.safetensors");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, info] : file.tensors())
    if (name != removed) tensors[name] = file.load(name);
  if (!added.empty()) tensors[added] = Tensor::of(std::vector<float>(6), {2, 3});
  const TemporaryDirectory folder;
  save_safetensors(folder / "t5.safetensors", tensors);
  expect_error([&] { T5Config::read(folder / "t5.safetensors"); }, parts);
}

TEST(T5Config, RefusesFilesOfOtherEncoders) {
  const std::string attention = "encoder.block.0.layer.0.SelfAttention.";
  expect_file_error("encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight", "",
                    {"t5.safetensors", "UMT5"});
  expect_file_error("encoder.block.0.layer.1.DenseReluDense.wi.weight", "", {"t5.safetensors", "T5 1.0"});
  expect_file_error("", attention + "relative_attention_bias.weight", {"t5.safetensors", "relative_attention_bias"});
  expect_file_error(attention + "q.weight", attention + "q.weight",
                    {"t5.safetensors", "q.weight", "4 heads", "[2, 3]"});
  expect_file_error("", "shared.weight", {"t5.safetensors", "embed_tokens.weight"});
}

}  // namespace
}  // namespace wick
