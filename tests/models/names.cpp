// Module names of SDXL against those that ComfyUI's rules give (tools/golden/comfy_names.py), at full size.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "source_dir.h"
#include "wick/backend/counting.h"
#include "wick/io/json.h"
#include "wick/models/sdxl/config.h"
#include "wick/models/sdxl/names.h"

namespace wick {
namespace {

const std::string kGolden = (test::source_dir() / "tests/golden/").string();

SdxlConfig full_size() {
  return {.text_encoder = {49408, 77, 768, 3072, 768, 12, 12, 1e-5f, true, 2, false},
          .text_encoder_2 = {49408, 77, 1280, 5120, 1280, 32, 20, 1e-5f, false, 2, true},
          .unet = {.in_channels = 4,
                   .out_channels = 4,
                   .channels = {320, 640, 1280},
                   .down_has_attention = {false, true, true},
                   .up_has_attention = {true, true, false},
                   .heads = {5, 10, 20},
                   .transformer_layers = {1, 2, 10},
                   .layers_per_block = 2,
                   .groups = 32,
                   .cross_attention_dim = 2048,
                   .time_ids_dim = 256,
                   .added_dim = 2816,
                   .eps = 1e-5f},
          .vae = {3, 3, 4, {128, 256, 512, 512}, 2, 32, 0.13025f, 0, true, true}};
}

// Constructs the whole model on outlines, and returns the adapter's base names with [in, out] and every spelling.
struct Found {
  std::map<std::string, std::vector<int64_t>> sizes;
  std::map<std::string, std::vector<std::string>> spellings;
};

Found find_targets(const SdxlConfig& config, std::vector<std::string> targets) {
  Found found;
  const ModuleNames names = sdxl_module_names(config.unet);
  const ModuleNames recording = [&](const std::string& path) {
    const std::vector<std::string> all = names(path);
    if (!all.empty()) found.spellings[all.front()] = all;
    return all;
  };
  CountingBackend counting(device_kind("cpu"));
  Adapter adapter({.rank = 1, .targets = std::move(targets)}, recording);
  const auto scope = [&](const char* component) {
    return Scope(Weights::outline({.place = Residence::on(counting, DType::f32)}), component, &adapter);
  };
  const ClipText text_encoder(scope("text_encoder"), config.text_encoder);
  const ClipText text_encoder_2(scope("text_encoder_2"), config.text_encoder_2);
  const SdxlUNet unet(scope("unet"), config.unet);
  const VaeEncoder encoder(scope("vae"), config.vae);
  const VaeDecoder decoder(scope("vae"), config.vae);
  adapter.check_complete();
  const auto tensors = adapter.tensors();
  for (const auto& [name, tensor] : tensors)
    if (name.ends_with(".alpha")) {
      const std::string base = name.substr(0, name.size() - 6);
      found.sizes[base] = {tensors.at(base + ".lora_down.weight").dim(1), tensors.at(base + ".lora_up.weight").dim(0)};
    }
  return found;
}

void expect_names(const SdxlConfig& config, const std::string& golden, size_t unet_modules) {
  const nlohmann::json comfy = read_json(kGolden + golden);
  std::map<std::string, std::vector<int64_t>> expected = comfy.at("default_targets"), expected_unet;
  for (const auto& [name, size] : expected)
    if (name.starts_with("lora_unet_")) expected_unet[name] = size;

  EXPECT_EQ(find_targets(config, sdxl_default_targets()).sizes, expected_unet);
  EXPECT_EQ(expected_unet.size(), unet_modules);
  const Found with_text = find_targets(config, {"unet.*.attentions.*", "text_encoder*.encoder.*"});
  EXPECT_EQ(with_text.sizes, expected);

  for (const auto& [spelling, native] : comfy.at("diffusers_spelling").items()) {
    const std::vector<std::string>& known = with_text.spellings.at(native);
    EXPECT_NE(std::find(known.begin(), known.end(), spelling), known.end()) << spelling;
  }

  const std::set<std::string> mapped = comfy.at("mapped");
  for (const auto& [name, size] : find_targets(config, {"*"}).sizes) EXPECT_TRUE(mapped.contains(name)) << name;
}

TEST(SdxlNames, AreWhatComfyUIMapsAtFullSize) { expect_names(full_size(), "comfy_sdxl_full.json", 722); }

TEST(SdxlNames, AreWhatComfyUIMapsOfTheTinyModel) {
  expect_names(SdxlConfig::read(std::filesystem::path(kGolden + "sdxl")), "comfy_sdxl_tiny.json", 192);
}

TEST(SdxlNames, UnderstandPeftAndOldDiffusers) {
  const ModuleNames names = sdxl_module_names(full_size().unet);
  const auto understands = [&](const std::string& path, const std::string& name) {
    const std::vector<std::string> all = names(path);
    EXPECT_NE(std::find(all.begin(), all.end(), name), all.end()) << name;
  };
  const std::string attention = "mid_block.attentions.0.transformer_blocks.3.attn2.";
  understands("unet." + attention + "to_out.0", "unet." + attention + "to_out.0");
  understands("unet." + attention + "to_out.0", "unet." + attention + "processor.to_out");
  understands("unet." + attention + "to_q", "unet." + attention + "processor.to_q");
  understands("unet." + attention + "to_q", "diffusion_model.middle_block.1.transformer_blocks.3.attn2.to_q");
  understands("text_encoder.text_model.encoder.layers.3.mlp.fc1", "lora_te_text_model_encoder_layers_3_mlp_fc1");
  understands("text_encoder_2.text_model.encoder.layers.3.mlp.fc1",
              "text_encoder_2.text_model.encoder.layers.3.mlp.fc1");
  for (const std::string prefix : {"", "base_model.model."}) {
    understands("unet." + attention + "to_k", prefix + attention + "to_k");
    understands("unet." + attention + "to_out.0", prefix + attention + "processor.to_out");
    understands("unet.conv_in", prefix + "conv_in");
  }
  for (const std::string inner : {"text_model.", ""})
    for (const auto& [component, comfy, flat] :
         {std::tuple{"text_encoder", "clip_l", "lora_te1_"}, {"text_encoder_2", "clip_g", "lora_te2_"}}) {
      const std::string path = std::string(component) + ".text_model.encoder.layers.3.",
                        layer = inner + "encoder.layers.3.";
      understands(path + "mlp.fc1", std::string(component) + "." + layer + "mlp.fc1");
      understands(path + "mlp.fc1", std::string("text_encoders.") + comfy + ".transformer." + layer + "mlp.fc1");
      understands(path + "mlp.fc1",
                  flat + (inner.empty() ? std::string() : "text_model_") + "encoder_layers_3_mlp_fc1");
      understands(path + "self_attn.out_proj", std::string(component) + "." + layer + "self_attn.to_out");
    }
  EXPECT_TRUE(names("vae.encoder.conv_in").empty());
}

}  // namespace
}  // namespace wick
