#include "wick/models/sd3/transformer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/files.h"
#include "source_dir.h"
#include "wick/backend/counting.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/models/sd3/names.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = test::source_dir() / "tests/golden/sd3_transformer";
const fs::path kModel = kGolden / "dual/transformer";
const fs::path kFile = kModel / "diffusion_pytorch_model.safetensors";

auto sizes_of(const Sd3Config& c) {
  return std::tuple(c.channels, c.heads, c.head_dim, c.text_dim, c.pooled_dim, c.dual, c.qk_norm, c.table_side);
}

TEST(Sd3Config, ComesFromConfigOrTensorsOrBoth) {
  const auto whole = sizes_of(Sd3Config::read(kModel));
  EXPECT_EQ(whole, std::tuple(16, 3, 8, 10, 14, std::vector{true, false, false}, true, 11));
  EXPECT_EQ(sizes_of(Sd3Config::read(kFile)), whole);  // a bare file
  const TemporaryDirectory folder;
  fs::copy(kModel / "config.json", folder / "config.json");
  EXPECT_EQ(sizes_of(Sd3Config::read(folder.path())), whole);  // a plan reads nothing else
}

// The tensors of the model under Stability's names.
std::map<std::string, Tensor> native_tensors() {
  const TensorSource source = sd3_source(safetensors_source(kFile));
  std::map<std::string, Tensor> tensors;
  const auto add = [&](const std::string& name) {
    for (const std::string kind : {"", ".weight", ".bias"})
      if (const auto stored = source.find(name + kind, {})) tensors[name + kind] = stored->load(host_memory());
  };
  for (const char* name :
       {"pos_embed", "x_embedder.proj", "context_embedder", "t_embedder.mlp.0", "t_embedder.mlp.2", "y_embedder.mlp.0",
        "y_embedder.mlp.2", "final_layer.adaLN_modulation.1", "final_layer.linear"})
    add(name);
  for (const std::string block : {"joint_blocks.0.", "joint_blocks.1.", "joint_blocks.2."})
    for (const std::string stream : {"x_block.", "context_block."})
      for (const char* name : {"adaLN_modulation.1", "attn.qkv", "attn.ln_q", "attn.ln_k", "attn.proj", "attn2.qkv",
                               "attn2.ln_q", "attn2.ln_k", "attn2.proj", "mlp.fc1", "mlp.fc2"})
        add(block + stream + name);
  return tensors;
}

Sd3Input input(const Sd3Transformer& model) {
  const SafetensorsFile in = SafetensorsFile::open(kGolden / "dual/batch.in.safetensors");
  return {.latents = to_channels_last(in.load("hidden_states")),
          .timestep = in.load("timestep"),
          .pooled = in.load("pooled_projections"),
          .text = in.load("encoder_hidden_states"),
          .positions = model.positions(4, 6)};
}

std::vector<float> output(const Sd3Config& config, const TensorSource& source) {
  const Sd3Transformer model(Scope({source, {}}, "transformer"), config);
  return model(input(model)).to_vector();
}

TEST(Sd3Names, GiveTheSameBitsInBothLayouts) {
  const Sd3Config config = Sd3Config::read(kModel);
  const TemporaryDirectory folder;
  const auto tensors = native_tensors();
  EXPECT_LT(tensors.size(), SafetensorsFile::open(kFile).tensors().size());
  save_safetensors(folder / "native.safetensors", tensors);
  EXPECT_EQ(sizes_of(Sd3Config::read(folder / "native.safetensors")), sizes_of(config));
  EXPECT_EQ(output(config, safetensors_source(folder / "native.safetensors")),
            output(config, sd3_source(safetensors_source(kFile))));
}

TEST(Sd3Transformer, ReadsEveryTensor) {
  const Sd3Config config = Sd3Config::read(kModel);
  const Weights weights({sd3_source(safetensors_source(kFile))}, {.trainable = true});
  const Sd3Transformer model(Scope(weights, "transformer"), config);
  EXPECT_EQ(weights.parameters().size() + 1, native_tensors().size());  // all but the table of positions
  Tape tape;
  const Grads grads = tape.backward(mean(square(model(input(model)))));
  for (const Parameter& p : weights.parameters()) EXPECT_TRUE(grads[p.value]) << p.name;
}

std::vector<std::vector<float>> gradients(bool checkpointing, std::set<int64_t> skipped) {
  const Weights weights({sd3_source(safetensors_source(kFile))}, {.trainable = true});
  const Sd3Transformer model(Scope(weights, "transformer"), Sd3Config::read(kModel),
                             {.block_schedule = BlockSchedule::recomputing_all(checkpointing)});
  Tape tape;
  Sd3Input in = input(model);
  in.skipped = std::move(skipped);
  const Grads grads = tape.backward(mean(square(model(in))));
  std::vector<std::vector<float>> all;
  for (const Parameter& p : weights.parameters())
    all.push_back(grads[p.value] ? grads[p.value].to_vector() : std::vector<float>());
  return all;
}

TEST(Sd3Transformer, CheckpointingGivesTheSameGradients) {
  EXPECT_EQ(gradients(false, {}), gradients(true, {}));
  EXPECT_EQ(gradients(false, {0}), gradients(true, {0}));
  EXPECT_EQ(gradients(false, {1, 2}), gradients(true, {1, 2}));
}

Sd3Config full_size(int64_t blocks, int64_t duals, bool qk_norm, int64_t table_side) {
  Sd3Config c{16, blocks, 64, 4096, 2048, std::vector<bool>(size_t(blocks), false), qk_norm, table_side, 64};
  std::fill_n(c.dual.begin(), duals, true);
  return c;
}

const Sd3Config kMedium = full_size(24, 13, true, 384), kLarge = full_size(38, 0, true, 192);

// The model's own weights without its table, from outlines, in millions. flow_models.md section 0 has the numbers.
TEST(Sd3Transformer, HasItsWeightsAtFullSize) {
  for (const auto& [config, expected] : {std::pair{kMedium, 2243}, {kLarge, 8057}}) {
    CountingBackend counting(device_kind("cpu"));
    const Weights outline =
        Weights::outline({.trainable = true, .place = Residence::on(counting, DType::f32)});  // lists its tensors
    const Sd3Transformer model(Scope(outline, "transformer"), config);
    double found = 0;
    for (const Parameter& p : outline.parameters()) found += 1e-6 * double(p.value.numel());
    EXPECT_NEAR(found, expected, 0.5);
  }
}

// flow_models.md section 1.1 has the values, of SD3.5 medium.
TEST(Sd3Transformer, PositionsFollowTheFormula) {
  const std::vector<float> entry = sd3_position(160, 161, kMedium);
  ASSERT_EQ(entry.size(), 1536);
  for (const auto& [index, value] : {std::pair{0, 0.991588f}, std::pair{1, 0.874617f}, std::pair{384, -0.129432f},
                                     std::pair{768, 0.99932f}, std::pair{1152, 0.036863f}})
    EXPECT_NEAR(entry[size_t(index)], value, 1e-6) << index;

  // diffusers stores a table, which wins; without one the formula gives the same.
  const Sd3Config config = Sd3Config::read(kModel);
  const auto positions = [&](std::map<std::string, Tensor> tensors, int64_t height, int64_t width) {
    const Sd3Transformer model(Scope(Weights::of(std::move(tensors)), "transformer"), config);
    return model.positions(height, width).to_vector();
  };
  std::map<std::string, Tensor> tensors = native_tensors();
  const std::vector<float> stored = positions(tensors, 22, 10);
  tensors["pos_embed"] = tensors["pos_embed"] * 2.0f;
  const std::vector<float> doubled = positions(tensors, 22, 10);
  tensors.erase("pos_embed");
  const std::vector<float> computed = positions(tensors, 22, 10);
  ASSERT_EQ(stored.size(), computed.size());
  for (size_t i = 0; i < stored.size(); ++i) {
    EXPECT_NEAR(stored[i], computed[i], 1e-6);
    EXPECT_EQ(doubled[i], 2 * stored[i]);
  }
}

TEST(Sd3Transformer, SaysWhichLatentsDoNotFit) {
  const Sd3Config config = Sd3Config::read(kModel);
  const Sd3Transformer model(Scope({sd3_source(safetensors_source(kFile)), {}}, "transformer"), config);
  expect_error([&] { model.positions(24, 8); }, {"transformer", "24 x 8", "12 x 4 tokens", "11 x 11"});
  Sd3Input in = input(model);
  in.latents = zeros({1, 5, 6, 16});
  expect_error([&] { model(in); }, {"transformer", "even", "5 x 6"});
}

// The model's config with some keys changed; null removes a key.
void expect_config_error(const std::string& model, const nlohmann::json& changes,
                         std::initializer_list<std::string_view> parts) {
  const TemporaryDirectory folder;
  fs::copy(kGolden / model / "transformer", folder.path());
  nlohmann::json config = read_json(folder / "config.json");
  config.update(changes);
  write_plain(folder / "config.json", config.dump());
  expect_error([&] { Sd3Config::read(folder.path()); }, parts);
}

TEST(Sd3Config, NamesBothWhereTheyContradict) {
  const auto expect_wrong = [](const nlohmann::json& changes, std::initializer_list<std::string_view> parts) {
    expect_config_error("dual", changes, parts);
  };
  expect_wrong({{"num_layers", 24}},
               {"config.json", "num_layers is 24", "transformer_blocks.2.", "joint_blocks.2.", "3"});
  expect_wrong({{"num_attention_heads", 4}}, {"num_attention_heads is 4", "x_embedder.proj.weight", "3"});
  expect_wrong({{"attention_head_dim", 64}}, {"attention_head_dim is 64", "ln_q.weight", "8"});
  expect_wrong({{"joint_attention_dim", 4096}}, {"joint_attention_dim is 4096", "context_embedder.weight", "10"});
  expect_wrong({{"pooled_projection_dim", 768}}, {"pooled_projection_dim is 768", "y_embedder.mlp.0.weight", "14"});
  expect_wrong({{"pos_embed_max_size", 384}}, {"pos_embed_max_size is 384", "pos_embed", "11"});
  expect_wrong({{"in_channels", 4}}, {"in_channels is 4", "x_embedder.proj.weight", "16"});
  expect_wrong({{"out_channels", 32}}, {"out_channels 32", "in_channels 16"});
  expect_wrong({{"dual_attention_layers", {0, 1}}}, {"dual_attention_layers is [0, 1]", "attn2.qkv.weight", "[0]"});
  expect_wrong({{"caption_projection_dim", 12}}, {"caption_projection_dim is 12", "24"});
  expect_config_error("plain", {{"qk_norm", "rms_norm"}}, {"qk_norm is \"rms_norm\"", "no tensor", "ln_q.weight"});
}

TEST(Sd3Config, SaysWhichTablesDoNotFit) {
  const TemporaryDirectory folder;
  for (const Shape& shape : {Shape{1, 121, 23}, Shape{1, 120, 24}, Shape{121, 24}}) {
    std::map<std::string, Tensor> tensors = native_tensors();
    tensors["pos_embed"] = zeros(shape);
    save_safetensors(folder / "sd3.safetensors", tensors);
    expect_error([&] { Sd3Config::read(folder / "sd3.safetensors"); }, {"sd3.safetensors", "pos_embed", "shape"});
  }
}

TEST(Sd3Config, DualLayersHaveNoOrder) {
  const TemporaryDirectory folder;
  nlohmann::json config = read_json(kModel / "config.json");
  config["dual_attention_layers"] = {2, 0, 2, 40};
  write_plain(folder / "config.json", config.dump());
  EXPECT_EQ(Sd3Config::read(folder.path()).dual, (std::vector{true, false, true}));
  config["dual_attention_layers"] = {0, 0};
  write_plain(folder / "config.json", config.dump());
  fs::copy(kFile, folder.path());
  EXPECT_EQ(Sd3Config::read(folder.path()).dual, (std::vector{true, false, false}));
}

TEST(Sd3Config, SaysWhatIsNotSupported) {
  expect_config_error("dual", {{"_class_name", "FluxTransformer2DModel"}}, {"_class_name", "FluxTransformer2DModel"});
  expect_config_error("dual", {{"patch_size", 1}}, {"patch_size is 1", "2"});
  expect_config_error("dual", {{"qk_norm", "layer_norm"}}, {"qk_norm", "layer_norm"});
}

}  // namespace
}  // namespace wick
