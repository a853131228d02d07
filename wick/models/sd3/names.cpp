// Stability's names of SD3's tensors and diffusers': outside the blocks (without ".weight" and ".bias") and inside of
// joint_blocks.N, which is transformer_blocks.N of diffusers.
#include "wick/models/sd3/names.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace wick {
namespace {

enum class Halves { as_they_are, swapped, swapped_in_last };  // of a modulation: shift, scale against scale, shift

struct Module {
  std::string_view name;
  std::vector<std::string_view> diffusers;  // several are parts of one, one after the other
  Halves halves = Halves::as_they_are;
};

const std::vector<Module>& outside_blocks() {
  static const std::vector<Module> all = {
      {"pos_embed", {"pos_embed.pos_embed"}},
      {"x_embedder.proj", {"pos_embed.proj"}},
      {"context_embedder", {"context_embedder"}},
      {"t_embedder.mlp.0", {"time_text_embed.timestep_embedder.linear_1"}},
      {"t_embedder.mlp.2", {"time_text_embed.timestep_embedder.linear_2"}},
      {"y_embedder.mlp.0", {"time_text_embed.text_embedder.linear_1"}},
      {"y_embedder.mlp.2", {"time_text_embed.text_embedder.linear_2"}},
      {"final_layer.adaLN_modulation.1", {"norm_out.linear"}, Halves::swapped},
      {"final_layer.linear", {"proj_out"}},
  };
  return all;
}

const std::vector<Module>& inside_block() {
  static const std::vector<Module> all = {
      {"x_block.adaLN_modulation.1", {"norm1.linear"}},
      {"x_block.attn.qkv", {"attn.to_q", "attn.to_k", "attn.to_v"}},
      {"x_block.attn.ln_q", {"attn.norm_q"}},
      {"x_block.attn.ln_k", {"attn.norm_k"}},
      {"x_block.attn.proj", {"attn.to_out.0"}},
      {"x_block.attn2.qkv", {"attn2.to_q", "attn2.to_k", "attn2.to_v"}},
      {"x_block.attn2.ln_q", {"attn2.norm_q"}},
      {"x_block.attn2.ln_k", {"attn2.norm_k"}},
      {"x_block.attn2.proj", {"attn2.to_out.0"}},
      {"x_block.mlp.fc1", {"ff.net.0.proj"}},
      {"x_block.mlp.fc2", {"ff.net.2"}},
      {"context_block.adaLN_modulation.1", {"norm1_context.linear"}, Halves::swapped_in_last},
      {"context_block.attn.qkv", {"attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"}},
      {"context_block.attn.ln_q", {"attn.norm_added_q"}},
      {"context_block.attn.ln_k", {"attn.norm_added_k"}},
      {"context_block.attn.proj", {"attn.to_add_out"}},
      {"context_block.mlp.fc1", {"ff_context.net.0.proj"}},
      {"context_block.mlp.fc2", {"ff_context.net.2"}},
  };
  return all;
}

// "joint_blocks.3.x_block.attn.qkv.weight" cut into "joint_blocks.3.", "x_block.attn.qkv" and ".weight".
struct TensorName {
  std::string_view block, module, kind;

  explicit TensorName(std::string_view name) : module(name) {
    constexpr std::string_view kBlocks = "joint_blocks.";
    for (const std::string_view end : {".weight", ".bias"})
      if (module.ends_with(end)) kind = end;
    module.remove_suffix(kind.size());
    const size_t dot = module.find('.', kBlocks.size());
    if (!module.starts_with(kBlocks) || dot == module.npos) return;
    block = module.substr(0, dot + 1);
    module.remove_prefix(block.size());
  }
};

std::vector<Rows> stored_rows(const TensorSource& source, const std::string& asked) {
  const TensorName name(asked);
  std::string prefix(name.block);
  if (!prefix.empty()) prefix.replace(0, prefix.find('.'), "transformer_blocks");
  // The text of the last block has neither output nor feed-forward.
  const auto is_last = [&] { return !source.has(prefix + "attn.to_add_out.weight"); };
  for (const Module& module : prefix.empty() ? outside_blocks() : inside_block()) {
    if (module.name != name.module) continue;
    std::vector<Rows> rows;
    for (const std::string_view part : module.diffusers)
      rows.push_back({prefix + std::string(part) + std::string(name.kind)});
    if (module.halves == Halves::swapped || (module.halves == Halves::swapped_in_last && is_last()))
      rows = {{rows.front().whole, 1, 2}, {rows.front().whole, 0, 2}};
    return rows;
  }
  return {};
}

// A text encoder's short names in LoRA files: kohya's and ComfyUI's.
struct TextEncoder {
  const char *component, *kohya, *comfy;
};

constexpr TextEncoder kTextEncoders[] = {{"text_encoder", "lora_te1_", "text_encoders.clip_l."},
                                         {"text_encoder_2", "lora_te2_", "text_encoders.clip_g."},
                                         {"text_encoder_3", "lora_te3_", "text_encoders.t5xxl."}};

std::string underscored(std::string_view name) {
  std::string flat(name);
  std::ranges::replace(flat, '.', '_');
  return flat;
}

}  // namespace

TensorSource sd3_source(const TensorSource& stored) {
  if (!stored.has_values) return stored;
  const std::string comfy = "model.diffusion_model.";
  const TensorSource bare = stored.has(comfy + "x_embedder.proj.weight") ? with_prefix(stored, comfy) : stored;
  if (!bare.has("pos_embed.proj.weight")) return bare;
  return assembled(bare, [bare](const std::string& name) { return stored_rows(bare, name); });
}

ModuleNames sd3_module_names() {
  return [](const std::string& path) -> std::vector<std::string> {
    const size_t dot = path.find('.');
    const std::string component = path.substr(0, dot), name = dot == path.npos ? "" : path.substr(dot + 1);
    if (component == "transformer") return {"lora_unet_" + underscored(name), "diffusion_model." + name};
    for (const TextEncoder& encoder : kTextEncoders)
      if (component == encoder.component)
        return {encoder.kohya + underscored(name), component + "." + name,
                std::string(encoder.comfy) + "transformer." + name};
    return {};  // no LoRA file has a name for the VAE
  };
}

std::map<std::string, std::vector<std::string>> sd3_lora_prefixes() {
  std::map<std::string, std::vector<std::string>> prefixes = {
      {"transformer", {"lora_unet_", "diffusion_model.", "transformer.", "lora_transformer_", "lycoris_"}}};
  for (const TextEncoder& encoder : kTextEncoders)
    prefixes[encoder.component] = {encoder.kohya, std::string(encoder.component) + ".", encoder.comfy};
  return prefixes;
}

std::vector<std::string> sd3_default_targets() { return {"transformer.joint_blocks.*"}; }

}  // namespace wick
