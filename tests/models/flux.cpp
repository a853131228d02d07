// FLUX's transformer from files in layouts that diffusers does not write.
#include "wick/models/flux/transformer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "io/files.h"
#include "pipelines/golden.h"
#include "wick/io/json.h"
#include "wick/models/flux/names.h"
#include "wick/nn/layout.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, Tensor>;

const fs::path kModel = kGolden / "flux/dev/transformer";

auto sizes_of(const FluxConfig& c) {
  return std::tuple(c.channels, c.heads, c.head_dim, c.text_dim, c.pooled_dim, c.double_blocks, c.single_blocks,
                    c.guidance);
}

std::vector<float> output(const FluxConfig& config, const TensorSource& source) {
  const SafetensorsFile in = open_golden("flux/dev/lora.in");
  const FluxTransformer model(Scope({source, {}}, "transformer"), config);
  const std::vector<float> ids = in.load("img_ids").to_vector();
  FluxPlaces places(size_t(in.load("txt_ids").dim(0)));
  for (size_t i = 0; i < ids.size(); i += 3) places.push_back({ids[i], ids[i + 1], ids[i + 2]});
  return model({.tokens = in.load("hidden_states"),
                .timestep = in.load("timestep") * 1000.0f,
                .guidance = in.load("guidance"),
                .pooled = in.load("pooled_projections"),
                .text = in.load("encoder_hidden_states"),
                .rotary = flux_rotary(places, config, host_memory())})
      .to_vector();
}

Tensors stored_tensors() {
  const SafetensorsFile file = SafetensorsFile::open(kModel / "diffusion_pytorch_model.safetensors");
  Tensors all;
  for (const auto& [name, info] : file.tensors()) all[name] = file.load(name);
  return all;
}

// Under Black Forest Labs' names, as training would save them from another layout.
Tensors native_tensors() {
  std::set<std::string> asked;
  const TensorSource source = flux_source(memory_source(stored_tensors()));
  const FluxTransformer model(Scope({watched(source, asked), {}}, "transformer"), FluxConfig::read(kModel));
  Tensors all;
  for (const std::string& name : asked)
    if (const auto stored = source.find(name, {})) all[name] = stored->load(host_memory());
  return all;
}

// ComfyUI 0.33 saves "…norm.query_norm.weight" where Black Forest Labs' files have "…scale".
TEST(FluxFiles, MayHaveComfyUIsNamesOfNorms) {
  for (const std::string prefix : {"", "model.diffusion_model."}) {
    Tensors native, comfy;
    for (const auto& [name, value] : native_tensors()) {
      const size_t scale = name.rfind(".scale");
      native[prefix + name] = value;
      comfy[prefix + (scale == name.npos ? name : name.substr(0, scale) + ".weight")] = value;
    }
    const auto sizes_and_output = [](const Tensors& tensors) {
      const TemporaryDirectory folder;
      fs::copy(kModel / "config.json", folder / "config.json");
      save_safetensors(folder / "diffusion_pytorch_model.safetensors", tensors);
      const FluxConfig config = FluxConfig::read(folder.path());
      return std::pair(sizes_of(config), output(config, flux_source(open_source(folder.path()))));
    };
    EXPECT_EQ(sizes_and_output(comfy), sizes_and_output(native));
  }
}

// The result equals that of a model with single blocks in which all gates are 0.
TEST(FluxFiles, MayHaveNoSingleBlocks) {
  Tensors gated = stored_tensors(), without;
  for (auto& [name, value] : gated) {
    const bool is_single = name.starts_with("single_transformer_blocks.");
    if (!is_single) without[name] = value;
    if (is_single && name.find(".norm.linear.") != name.npos) value = zeros(value.shape());
  }
  const TemporaryDirectory folder;
  save_safetensors(folder / "diffusion_pytorch_model.safetensors", without);
  nlohmann::json json = read_json(kModel / "config.json");
  json["num_single_layers"] = 0;
  write_plain(folder / "config.json", json.dump());
  const FluxConfig config = FluxConfig::read(folder.path());
  EXPECT_EQ(config.single_blocks, 0);
  EXPECT_EQ(output(config, flux_source(open_source(folder.path()))),
            output(FluxConfig::read(kModel), flux_source(memory_source(gated))));
  EXPECT_EQ(flux_default_targets(config.single_blocks), std::vector<std::string>{"transformer.double_blocks.*"});
  json.erase("num_single_layers");  // which is 38 then
  write_plain(folder / "config.json", json.dump());
  EXPECT_EQ(FluxConfig::read(folder.path()).single_blocks, 38);
}

TEST(FluxFiles, ABareFileTellsThatThereAreNoSingleBlocks) {
  const TemporaryDirectory folder;
  save_safetensors(folder / "x.safetensors", {{"img_in.weight", zeros({64, 64})},
                                              {"txt_in.weight", zeros({64, 20})},
                                              {"vector_in.in_layer.weight", zeros({64, 12})},
                                              {"double_blocks.0.img_attn.norm.query_norm.weight", zeros({32})},
                                              {"double_blocks.0.img_attn.qkv.weight", zeros({192, 64})}});
  const FluxConfig config = FluxConfig::read(folder / "x.safetensors");
  EXPECT_EQ(sizes_of(config), std::tuple(16, 2, 32, 20, 12, 1, 0, false));
}

}  // namespace
}  // namespace wick
