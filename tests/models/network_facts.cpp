// Sizes of CLIP encoders and VAEs from their config, from a bare file's tensors, and from both.
#include "wick/models/network_facts.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/files.h"
#include "source_dir.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/models/clip.h"
#include "wick/models/vae.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kModel = test::source_dir() / "tests/golden/sdxl";

using Shapes = std::map<std::string, Shape>;

fs::path bare_file(const TemporaryDirectory& folder, const Shapes& shapes) {
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, shape] : shapes) tensors[name] = zeros(shape);
  save_safetensors(folder / "bare.safetensors", tensors);
  return folder / "bare.safetensors";
}

Shapes clip_shapes(int64_t width) {
  return {{"text_model.embeddings.token_embedding.weight", {11, width}},
          {"text_model.embeddings.position_embedding.weight", {7, width}},
          {"text_model.encoder.layers.0.mlp.fc1.weight", {20, width}},
          {"text_model.encoder.layers.1.mlp.fc1.weight", {20, width}},
          {"text_projection.weight", {5, width}}};
}

TEST(ClipConfig, OfABareFile) {
  const TemporaryDirectory folder;
  const fs::path file = bare_file(folder, clip_shapes(192));
  const ClipConfig l = ClipConfig::read(file, ClipKind::l);
  EXPECT_EQ(std::tuple(l.vocab, l.positions, l.hidden, l.intermediate, l.layers, l.heads, l.eps),
            std::tuple(11, 7, 192, 20, 2, 3, 1e-5f));
  EXPECT_TRUE(l.quick_gelu);
  EXPECT_FALSE(l.with_projection);
  const ClipConfig g = ClipConfig::read(file, ClipKind::big_g);
  EXPECT_EQ(std::tuple(g.heads, g.projection), std::tuple(3, 5));
  EXPECT_FALSE(g.quick_gelu);
  EXPECT_TRUE(g.with_projection);

  Shapes incomplete = clip_shapes(192);
  incomplete.erase("text_projection.weight");
  expect_error([&] { ClipConfig::read(bare_file(folder, incomplete), ClipKind::big_g); },
               {"bare.safetensors", "text_projection.weight"});
  expect_error([&] { ClipConfig::read(bare_file(folder, clip_shapes(100))); }, {"bare.safetensors", "100", "64"});
}

TEST(ClipConfig, OfABareFileWithAGap) {
  const TemporaryDirectory folder;
  Shapes shapes = clip_shapes(192);
  shapes["text_model.encoder.layers.4.mlp.fc1.weight"] = {20, 192};
  expect_error([&] { ClipConfig::read(bare_file(folder, shapes)); },
               {"bare.safetensors", "has no tensor \"text_model.encoder.layers.2.mlp.fc1.weight\"",
                "but has \"text_model.encoder.layers.4.mlp.fc1.weight\""});
}

Shapes vae_shapes() {
  return {{"encoder.conv_in.weight", {32, 3, 3, 3}},
          {"decoder.conv_out.weight", {3, 32, 3, 3}},
          {"decoder.conv_in.weight", {96, 16, 3, 3}},
          {"encoder.down_blocks.0.resnets.0.conv1.weight", {32, 32, 3, 3}},
          {"encoder.down_blocks.0.resnets.1.conv1.weight", {32, 32, 3, 3}},
          {"encoder.down_blocks.1.resnets.0.conv1.weight", {96, 32, 3, 3}}};
}

TEST(VaeConfig, OfABareFile) {
  const TemporaryDirectory folder;
  const LatentScale scale{0.5f, 0.25f};
  const VaeConfig c = VaeConfig::read(bare_file(folder, vae_shapes()), scale);
  EXPECT_EQ(std::tuple(c.in_channels, c.out_channels, c.latent_channels, c.layers_per_block, c.groups),
            std::tuple(3, 3, 16, 2, 32));
  EXPECT_EQ(c.channels, (std::vector<int64_t>{32, 96}));
  EXPECT_EQ(std::tuple(c.scaling_factor, c.shift_factor), std::tuple(0.5f, 0.25f));
  EXPECT_FALSE(c.use_quant_conv || c.use_post_quant_conv);
  Shapes more = vae_shapes();
  more["quant_conv.weight"] = {32, 32, 1, 1};
  EXPECT_TRUE(VaeConfig::read(bare_file(folder, more)).use_quant_conv);
  expect_error([&] { VaeConfig::read(bare_file(folder, {})); }, {"bare.safetensors", "encoder.conv_in.weight"});
}

// A component of the tiny SDXL with some of its config changed.
void expect_contradiction(const std::string& component, const nlohmann::json& changes,
                          std::initializer_list<std::string_view> parts) {
  const TemporaryDirectory folder;
  fs::copy(kModel / component, folder.path());
  nlohmann::json config = read_json(kModel / component / "config.json");
  config.update(changes);
  write_plain(folder / "config.json", config.dump());
  expect_error(
      [&] { component == "vae" ? void(VaeConfig::read(folder.path())) : void(ClipConfig::read(folder.path())); },
      parts);
}

TEST(NetworkFacts, NamesConfigAndTensorWhereTheyContradict) {
  const auto expect_clip = [](const nlohmann::json& changes, std::initializer_list<std::string_view> parts) {
    expect_contradiction("text_encoder_2", changes, parts);
  };
  expect_clip({{"hidden_size", 48}},
              {"config.json", "hidden_size is 48", "token_embedding.weight", "safetensors", "24"});
  expect_clip({{"vocab_size", 3}}, {"vocab_size is 3,", "token_embedding.weight", "814"});
  expect_clip({{"max_position_embeddings", 64}}, {"embeddings is 64", "position_embedding.weight", "77"});
  expect_clip({{"intermediate_size", 4}}, {"intermediate_size is 4,", "fc1.weight", "96"});
  expect_clip({{"num_hidden_layers", 2}}, {"num_hidden_layers is 2", "layers.2.", "3"});
  expect_clip({{"projection_dim", 24}}, {"projection_dim is 24", "text_projection.weight", "20"});
  const auto expect_vae = [](const nlohmann::json& changes, std::initializer_list<std::string_view> parts) {
    expect_contradiction("vae", changes, parts);
  };
  expect_vae({{"block_out_channels", {8, 12, 16, 24}}},
             {"config.json", "block_out_channels is [8, 12, 16, 24]", "down_blocks.{}", "[8, 12, 16, 16]"});
  expect_vae({{"layers_per_block", 1}}, {"layers_per_block is 1", "resnets.1.", "2"});
  expect_vae({{"latent_channels", 16}}, {"latent_channels is 16", "decoder.conv_in.weight", "4"});
  expect_vae({{"use_quant_conv", false}}, {"use_quant_conv is false", "has a tensor \"quant_conv.weight\""});
  expect_vae({{"use_post_quant_conv", false}}, {"use_post_quant_conv is false", "\"post_quant_conv.weight\""});
}

TEST(NetworkFacts, OfNothingIsAnError) {
  const TemporaryDirectory folder;
  expect_error([&] { VaeConfig::read(folder / "vae"); }, {"vae/config.json"});
}

}  // namespace
}  // namespace wick
