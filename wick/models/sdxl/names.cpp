// The UNet's blocks have two sets of names: diffusers' (down_blocks.1.attentions.0) and those of the original code
// (input_blocks.4.1), which single files have, kohya's trainers write and every program reads.
#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "wick/models/lora_names.h"
#include "wick/models/sdxl/names.h"
#include "wick/nn/layout.h"

namespace wick {

namespace {

struct Rename {
  std::string_view diffusers, original;
};

constexpr Rename kOutsideBlocks[] = {
    {"conv_in", "input_blocks.0.0"},
    {"time_embedding.linear_1", "time_embed.0"},
    {"time_embedding.linear_2", "time_embed.2"},
    {"add_embedding.linear_1", "label_emb.0.0"},
    {"add_embedding.linear_2", "label_emb.0.2"},
    {"conv_norm_out", "out.0"},
    {"conv_out", "out.2"},
};

constexpr Rename kInsideResnet[] = {
    {"norm1", "in_layers.0"},  {"conv1", "in_layers.2"},  {"time_emb_proj", "emb_layers.1"},
    {"norm2", "out_layers.0"}, {"conv2", "out_layers.3"}, {"conv_shortcut", "skip_connection"},
};

template <size_t N>
std::string renamed(const Rename (&table)[N], std::string_view name) {
  for (const Rename& entry : table)
    if (entry.diffusers == name) return std::string(entry.original);
  return {};
}

// Takes "NAME." off the front, if it is there.
bool eat(std::string_view& text, std::string_view name) {
  if (!text.starts_with(name) || text.size() <= name.size() || text[name.size()] != '.') return false;
  text.remove_prefix(name.size() + 1);
  return true;
}

int eat_index(std::string_view& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() + text.size()) return -1;
  text.remove_prefix(size_t(end - text.data()) + 1);
  return value;
}

// A resnet or transformer of a block, by its number among them, and the name within it; empty if there is no such one.
struct LayerName {
  bool resnet;
  int index = -1;
  std::string inner;

  explicit LayerName(std::string_view name) : resnet(eat(name, "resnets")) {
    if (!resnet && !eat(name, "attentions")) return;
    index = eat_index(name);
    inner = resnet ? renamed(kInsideResnet, name) : std::string(name);
  }
  // In the original code, where the first of the block's layers has the number `first`.
  std::string in(std::string_view blocks, int first, int layers) const {
    return inner.empty() || index >= layers ? ""
                                            : fmt::format("{}.{}.{}.{}", blocks, first + index, resnet ? 0 : 1, inner);
  }
};

// The sizes that the numbers of blocks follow from.
struct Blocks {
  int layers;                          // of a level, on the way down
  std::vector<bool> up_has_attention;  // by level, the lowest first
};

// "down_blocks.1.attentions.0.proj_in" -> "input_blocks.4.1.proj_in"; empty if there is no such module.
std::string original_name(std::string_view name, const Blocks& blocks) {
  const int layers = blocks.layers;
  if (eat(name, "down_blocks")) {
    const int level = eat_index(name), first = 1 + level * (layers + 1);  // conv_in is block 0
    if (eat(name, "downsamplers")) return fmt::format("input_blocks.{}.0.op", first + layers);
    return LayerName(name).in("input_blocks", first, layers);
  }
  if (eat(name, "up_blocks")) {
    const int block = eat_index(name), first = block * (layers + 1);
    if (block < 0 || size_t(block) >= blocks.up_has_attention.size()) return {};
    if (eat(name, "upsamplers"))
      return fmt::format("output_blocks.{}.{}.conv", first + layers, blocks.up_has_attention[size_t(block)] ? 2 : 1);
    return LayerName(name).in("output_blocks", first, layers + 1);
  }
  if (eat(name, "mid_block")) {  // resnet, transformer, resnet
    const LayerName layer(name);
    if (layer.inner.empty()) return {};
    return fmt::format("middle_block.{}.{}", layer.resnet ? 2 * layer.index : 1, layer.inner);
  }
  return renamed(kOutsideBlocks, name);
}

// A level ends with a convolution that halves its size, but for the last.
Blocks blocks_of(const TensorSource& original) {
  const int count = blocks_in(original, "input_blocks.");
  int levels = 1, layers = count - 1;
  for (int i = count - 1; i > 0; --i)
    if (original.has(fmt::format("input_blocks.{}.0.op.weight", i))) ++levels, layers = i - 1;
  Blocks blocks{layers, {}};
  for (int b = 0; b < levels; ++b)
    blocks.up_has_attention.push_back(original.has(fmt::format("output_blocks.{}.1.norm.weight", b * (layers + 1))));
  return blocks;
}

// ComfyUI and older diffusers call the projections of an attention "processor.to_q", "processor.to_out".
std::string processor_name(std::string_view name) {
  std::string old(name);
  if (old.ends_with(".to_out.0")) old.erase(old.size() - 2);
  if (const size_t at = old.rfind(".to_"); at != old.npos) old.replace(at, 4, ".processor.to_");
  return old;
}

// Without a prefix save_lora_adapter() of diffusers writes them, with that of PEFT a PEFT folder of the UNet has them.
std::vector<ModuleName> unet_names(std::string_view name, const UNetConfig& config) {
  const std::string original = original_name(name, {config.layers_per_block, config.up_has_attention});
  if (original.empty()) return {};
  std::vector<ModuleName> names = {{"lora_unet_" + underscored(original), Spelling::kohya},
                                   {"lora_unet_" + underscored(name), Spelling::onetrainer},
                                   {"lycoris_" + underscored(name)},
                                   {"diffusion_model." + original, Spelling::comfy}};
  const std::string today(name);
  for (const auto& [prefix, spelling] :
       {std::pair{"unet.", Spelling::diffusers}, {"", Spelling::other}, {"base_model.model.", Spelling::peft}}) {
    names.emplace_back(prefix + today, spelling);
    names.emplace_back(prefix + processor_name(name));
  }
  return names;
}

}  // namespace

TensorSource sdxl_source(const TensorSource& stored) {
  if (!stored.has_values) return stored;
  const TensorSource bare = without_comfyui_prefix(stored);
  if (!bare.has("input_blocks.0.0.weight")) return bare;
  return assembled(bare, [blocks = blocks_of(bare)](const std::string& name) -> std::vector<Rows> {
    const size_t dot = std::min(name.rfind('.'), name.size());
    const std::string original = original_name(std::string_view(name).substr(0, dot), blocks);
    return original.empty() ? std::vector<Rows>() : std::vector<Rows>{{original + name.substr(dot)}};
  });
}

ModuleNames sdxl_module_names(const UNetConfig& config) {
  return [config](const std::string& path) -> std::vector<ModuleName> {
    std::string_view name = path;
    if (eat(name, "unet")) return unet_names(name, config);
    for (const TextEncoderNames& clip : {kClipLNames, kClipGNames})
      if (eat(name, clip.component)) return clip_lora_names(name, clip);
    return {};  // no LoRA file has a name for the VAE
  };
}

std::map<std::string, std::vector<std::string>> sdxl_lora_prefixes() {
  std::vector<std::string> unet = {"lora_unet_", "lycoris_", "diffusion_model.", "unet."};
  for (const char* part : {"down_blocks.", "mid_block.", "up_blocks.", "time_embedding.", "add_embedding.", "conv_in",
                           "conv_norm_out", "conv_out"})
    for (const char* prefix : {"", "base_model.model."}) unet.push_back(std::string(prefix) + part);
  return {{kClipLNames.component, lora_prefixes(kClipLNames)},
          {kClipGNames.component, lora_prefixes(kClipGNames)},
          {"unet", std::move(unet)}};
}

std::vector<std::string> sdxl_default_targets() { return {"unet.*.attentions.*"}; }

std::vector<std::string> sdxl_conv_targets() {
  return {"unet.*.resnets.*", "unet.*.downsamplers.*", "unet.*.upsamplers.*"};
}

}  // namespace wick
