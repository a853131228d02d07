// Module names in LoRA files against those that ComfyUI's rules give (tools/golden/comfy_names.py,
// comfy_flow_names.py), at full size.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "source_dir.h"
#include "wick/backend/counting.h"
#include "wick/io/json.h"
#include "wick/models/comfy_names.h"
#include "wick/models/flux/names.h"
#include "wick/models/flux/transformer.h"
#include "wick/models/sd3/names.h"
#include "wick/models/sd3/transformer.h"
#include "wick/models/sdxl/config.h"
#include "wick/models/sdxl/names.h"
#include "wick/models/t5.h"

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

std::vector<std::string> spellings(const std::vector<ModuleName>& names) {
  std::vector<std::string> all;
  for (const ModuleName& name : names) all.push_back(name.name);
  return all;
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
    const std::vector<ModuleName> all = names(path);
    if (!all.empty()) found.spellings[all.front().name] = spellings(all);
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
  for (const auto& [name, size] : find_targets(config, {"*"}).sizes) {
    EXPECT_TRUE(mapped.contains(name)) << name;
    EXPECT_TRUE(comfyui_knows(name)) << name;
  }
}

TEST(SdxlNames, AreWhatComfyUIMapsAtFullSize) { expect_names(full_size(), "comfy_sdxl_full.json", 722); }

TEST(SdxlNames, AreWhatComfyUIMapsOfTheTinyModel) {
  expect_names(SdxlConfig::read(std::filesystem::path(kGolden + "sdxl")), "comfy_sdxl_tiny.json", 192);
}

TEST(SdxlNames, UnderstandPeftAndOldDiffusers) {
  const ModuleNames names = sdxl_module_names(full_size().unet);
  const auto understands = [&](const std::string& path, const std::string& name) {
    const std::vector<std::string> all = spellings(names(path));
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

// A model whose blocks are all alike but the last, under the names of comfy_flow.json.
struct FlowModel {
  std::string name;
  ModuleNames names;
  std::vector<std::string> targets;
  std::function<void(const Scope&)> build;  // its transformer
  std::vector<std::string> big_clip;        // its component, if it has one
  std::string t5;
};

FlowModel flux_model(const std::string& name, bool guidance) {
  const FluxConfig config{.channels = 16,
                          .heads = 24,
                          .head_dim = 128,
                          .text_dim = 4096,
                          .pooled_dim = 768,
                          .double_blocks = 19,
                          .single_blocks = 38,
                          .axes = {16, 56, 56},
                          .guidance = guidance};
  return {name,
          flux_module_names(),
          flux_default_targets(config.single_blocks),
          [config](const Scope& s) { FluxTransformer(s, config); },
          {},
          "text_encoder_2"};
}

FlowModel sd3_model(const std::string& name, int64_t blocks, int64_t duals, bool qk_norm, int64_t table) {
  Sd3Config config{16, blocks, 64, 4096, 2048, std::vector<bool>(size_t(blocks), false), qk_norm, table, 64};
  std::fill_n(config.dual.begin(), duals, true);
  return {name,
          sd3_module_names(int(blocks)),
          sd3_default_targets(),
          [config](const Scope& s) { Sd3Transformer(s, config); },
          {"text_encoder_2"},
          "text_encoder_3"};
}

std::vector<FlowModel> flow_models() {
  return {flux_model("flux-dev", true), flux_model("flux-schnell", false), sd3_model("sd3-medium", 24, 0, false, 192),
          sd3_model("sd3.5-medium", 24, 13, true, 384), sd3_model("sd3.5-large", 38, 0, true, 192)};
}

// With "*" for the numbers of blocks.
std::string kind(const std::string& name) {
  static const std::regex number("(blocks?|layers)([._])[0-9]+");
  return std::regex_replace(name, number, "$1$2*");
}

class FlowNames : public testing::TestWithParam<FlowModel> {
 protected:
  struct Outline {                                              // of one component, adapted at rank 16
    std::map<std::string, std::vector<ModuleName>> names = {};  // by path
    std::map<std::string, Tensor> tensors = {};
    size_t modules = 0;
  };

  Outline outline(const std::string& component, std::vector<std::string> targets,
                  const std::function<void(const Scope&)>& build) const {
    Outline found;
    const ModuleNames recording = [&](const std::string& path) { return found.names[path] = GetParam().names(path); };
    CountingBackend counting(device_kind("cpu"));
    Adapter adapter({.rank = 16, .targets = std::move(targets)}, recording);
    build(Scope(Weights::outline({.place = Residence::on(counting, DType::f32)}), component, &adapter));
    adapter.check_complete();
    found.modules = adapter.module_count();
    for (const auto& [name, tensor] : adapter.tensors()) found.tensors[name] = zeros(tensor.shape());
    return found;
  }

  nlohmann::json golden() const { return read_json(kGolden + "comfy_flow.json").at(GetParam().name); }
};

TEST_P(FlowNames, DefaultTargetsAreKohyas) {
  const Outline found = outline("transformer", GetParam().targets, GetParam().build);
  int64_t parameters = 0;
  for (const auto& [name, tensor] : found.tensors)
    if (!name.ends_with(".alpha")) parameters += tensor.numel();
  EXPECT_EQ((std::array{int64_t(found.modules), parameters}), (golden().at("targets").get<std::array<int64_t, 2>>()));
}

TEST_P(FlowNames, AreWhatComfyUIMaps) {
  const Outline found = outline("transformer", {"*"}, GetParam().build);
  using Row = std::tuple<std::string, int64_t, int64_t>;
  std::map<Row, int64_t> written, expected;
  for (const auto& [path, names] : found.names) {
    const std::string& name = names.at(0).name;
    EXPECT_TRUE(comfyui_knows(name)) << name;
    ++written[{kind(name), found.tensors.at(name + ".lora_down.weight").dim(1),
               found.tensors.at(name + ".lora_up.weight").dim(0)}];
  }
  const nlohmann::json rows = golden().at("native");
  for (const auto& row : rows)
    expected[{row[0].get<std::string>(), row[1].get<int64_t>(), row[2].get<int64_t>()}] = row[3].get<int64_t>();
  EXPECT_EQ(written, expected);
}

TEST_P(FlowNames, LeadFromDiffusersNamesToRows) {
  const std::string prefix = "transformer.";
  const Outline found = outline("transformer", {"*"}, GetParam().build);
  nlohmann::json rows;
  for (const auto& [path, names] : found.names) {
    const std::string module = path.substr(prefix.size());
    std::set<std::string> all;
    for (const ModuleName& name : names) all.insert(name.name);
    EXPECT_TRUE(all.contains("diffusion_model." + module) && all.contains(module));
    for (const auto& [name, of, spelling] : names) {
      if (!name.starts_with(prefix)) continue;
      const bool swapped = of.parts == std::vector<int>{1, 0};
      const std::string stored = name.substr(prefix.size());
      std::string flat = stored;
      std::replace(flat.begin(), flat.end(), '.', '_');
      for (const std::string& other :
           {stored, "base_model.model." + stored, "lora_transformer_" + flat, "lycoris_" + flat})
        EXPECT_TRUE(all.contains(other)) << other;
      rows[swapped ? stored : kind(stored)] = {swapped ? module : kind(module), of.parts, of.of};
    }
  }
  EXPECT_EQ(rows, golden().at("diffusers"));
}

TEST_P(FlowNames, TextEncodersAreWhatComfyUIMaps) {
  std::map<std::string, std::map<std::string, int64_t>> written;
  const auto add = [&](const std::string& component, const std::function<void(const Scope&)>& build) {
    for (const auto& [path, names] : outline(component, {"*"}, build).names)
      for (const std::string prefix : {"lora_te1_", "lora_te2_", "lora_te3_"})
        for (const ModuleName& name : names) {
          const bool bare = name.name.find("text_model") == std::string::npos && path.find("text_model") != path.npos;
          if (name.name.starts_with(prefix) && !bare) {
            EXPECT_TRUE(&name == &names.front() ? comfyui_knows(name.name) : prefix == "lora_te2_") << name.name;
            ++written[prefix][kind(name.name.substr(prefix.size()))];
          }
        }
  };
  const SdxlConfig sdxl = full_size();
  add("text_encoder", [&](const Scope& s) { ClipText(s, sdxl.text_encoder); });
  for (const std::string& clip : GetParam().big_clip)
    add(clip, [&](const Scope& s) { ClipText(s, sdxl.text_encoder_2); });
  add(GetParam().t5, [](const Scope& s) { T5Encoder(s, {32128, 4096, 64, 10240, 24, 64, 32, 128, 1e-6f}); });
  written["lora_te2_"].erase("text_projection");
  std::map<std::string, std::map<std::string, int64_t>> expected = golden().at("texts");
  EXPECT_EQ(written, expected);
}

INSTANTIATE_TEST_SUITE_P(Full, FlowNames, testing::ValuesIn(flow_models()), [](const auto& row) {
  std::string name = row.param.name;
  std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
  return name;
});

TEST(ComfyNames, AreOfKindsThatSomeModelHas) {
  EXPECT_EQ(comfyui_count({"lora_unet_img_in", "lora_unet_single_blocks_37_linear1"}), "ComfyUI knows 2 of 2 modules");
  EXPECT_EQ(comfyui_count({"lora_unet_img_in", "lora_unet_pos_embed", "lora_unet_img_in_0"}),
            "ComfyUI knows 1 of 3 modules, and not lora_unet_pos_embed");
  for (const char* name :
       {"", "lora_unet_", "lora_unet_single_blocks_linear1", "lora_unet_single_blocks__linear1",
        "lora_unet_single_blocks_1_linear10", "lora_unet_down_blocks_1_attentions_0_proj_in",
        "lora_te3_text_model_encoder_layers_0_mlp_fc1", "lora_te2_encoder_block_0_layer_0_SelfAttention_q"})
    EXPECT_FALSE(comfyui_knows(name)) << name;
}

TEST(FlowNames, UsoHasARangeOfLinear1) {
  const std::vector<ModuleName> names = flux_module_names()("transformer.single_blocks.3.linear1");
  const auto uso = std::ranges::find(names, "diffusion_model.single_blocks.3.linear1_qkv", &ModuleName::name);
  ASSERT_NE(uso, names.end());
  EXPECT_EQ(uso->rows.parts, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(uso->rows.of, 7);
}

TEST(FlowNames, OfACheckpointsPrefixAreKohyasToo) {
  const std::vector<std::string> flux = spellings(flux_module_names()("transformer.double_blocks.3.img_attn.qkv")),
                                 sd3 = spellings(sd3_module_names(2)("transformer.joint_blocks.1.x_block.mlp.fc1"));
  const auto count = [](const std::vector<std::string>& all, const char* name) {
    return std::ranges::count(all, name);
  };
  EXPECT_EQ(count(flux, "lora_unet_model_diffusion_model_double_blocks_3_img_attn_qkv"), 1);
  EXPECT_EQ(count(sd3, "lora_unet_model_diffusion_model_joint_blocks_1_x_block_mlp_fc1"), 1);
}

TEST(FlowNames, PrefixesCoverEveryName) {
  const auto expect_covered = [](const ModuleNames& names, const std::map<std::string, std::vector<std::string>>& all,
                                 const std::vector<std::string>& paths) {
    for (const std::string& path : paths)
      for (const ModuleName& name : names(path)) {
        const std::vector<std::string>& prefixes = all.at(path.substr(0, path.find('.')));
        EXPECT_TRUE(std::ranges::any_of(prefixes, [&](const std::string& p) { return name.name.starts_with(p); }))
            << name.name;
      }
  };
  const std::string clip = ".text_model.encoder.layers.0.self_attn.q_proj",
                    t5 = ".encoder.block.0.layer.0.SelfAttention.q";
  expect_covered(flux_module_names(), flux_lora_prefixes(),
                 {"transformer.img_in", "transformer.double_blocks.1.img_attn.qkv",
                  "transformer.single_blocks.3.linear1", "transformer.final_layer.linear", "text_encoder_2" + t5});
  expect_covered(sd3_module_names(2), sd3_lora_prefixes(),
                 {"transformer.x_embedder.proj", "transformer.joint_blocks.1.context_block.adaLN_modulation.1",
                  "transformer.final_layer.linear", "text_encoder_2" + clip, "text_encoder_3" + t5});
}

}  // namespace
}  // namespace wick
