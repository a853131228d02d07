#include "wick/models/sd3/names.h"

#include <string_view>

#include "wick/models/lora_names.h"

namespace wick {
namespace {

// Stability's modules <- diffusers', of a model with so many blocks. The last modulations, of two rows, have their
// scale before their shift there.
std::vector<LayoutRow> diffusers_rows(int blocks) {
  const std::string x = "joint_blocks.*.x_block.", text = "joint_blocks.*.context_block.",
                    stored = "transformer_blocks.*.", last = std::to_string(blocks - 1),
                    last_text = "transformer_blocks." + last + ".norm1_context.linear";
  return {
      {"pos_embed", {{"pos_embed.pos_embed"}}},
      {"x_embedder.proj", {{"pos_embed.proj"}}},
      {"context_embedder", {{"context_embedder"}}},
      {"t_embedder.mlp.0", {{"time_text_embed.timestep_embedder.linear_1"}}},
      {"t_embedder.mlp.2", {{"time_text_embed.timestep_embedder.linear_2"}}},
      {"y_embedder.mlp.0", {{"time_text_embed.text_embedder.linear_1"}}},
      {"y_embedder.mlp.2", {{"time_text_embed.text_embedder.linear_2"}}},
      {x + "adaLN_modulation.1", {{stored + "norm1.linear"}}},
      {x + "attn.qkv", {{stored + "attn.to_q"}, {stored + "attn.to_k"}, {stored + "attn.to_v"}}},
      {x + "attn.ln_q", {{stored + "attn.norm_q"}}},
      {x + "attn.ln_k", {{stored + "attn.norm_k"}}},
      {x + "attn.proj", {{stored + "attn.to_out.0"}}},
      {x + "attn2.qkv", {{stored + "attn2.to_q"}, {stored + "attn2.to_k"}, {stored + "attn2.to_v"}}},
      {x + "attn2.ln_q", {{stored + "attn2.norm_q"}}},
      {x + "attn2.ln_k", {{stored + "attn2.norm_k"}}},
      {x + "attn2.proj", {{stored + "attn2.to_out.0"}}},
      {x + "mlp.fc1", {{stored + "ff.net.0.proj"}}},
      {x + "mlp.fc2", {{stored + "ff.net.2"}}},
      {"joint_blocks." + last + ".context_block.adaLN_modulation.1", {{last_text, 1, 2}, {last_text, 0, 2}}},
      {text + "adaLN_modulation.1", {{stored + "norm1_context.linear"}}},
      {text + "attn.qkv", {{stored + "attn.add_q_proj"}, {stored + "attn.add_k_proj"}, {stored + "attn.add_v_proj"}}},
      {text + "attn.ln_q", {{stored + "attn.norm_added_q"}}},
      {text + "attn.ln_k", {{stored + "attn.norm_added_k"}}},
      {text + "attn.proj", {{stored + "attn.to_add_out"}}},
      {text + "mlp.fc1", {{stored + "ff_context.net.0.proj"}}},
      {text + "mlp.fc2", {{stored + "ff_context.net.2"}}},
      {"final_layer.adaLN_modulation.1", {{"norm_out.linear", 1, 2}, {"norm_out.linear", 0, 2}}},
      {"final_layer.linear", {{"proj_out"}}},
  };
}

TransformerNames transformer_names(int blocks) {
  return {diffusers_rows(blocks), [](std::string_view) { return 1; }};
}

const TextEncoderNames kT5{"text_encoder_3", {"lora_te3_"}, "t5xxl", /*in_diffusers=*/false};

}  // namespace

TensorSource sd3_source(const TensorSource& stored) {
  if (!stored.has_values) return stored;
  const TensorSource bare = without_comfyui_prefix(stored);
  const int blocks = blocks_in(bare, "transformer_blocks.");
  return blocks > 0 ? assembled(bare, assembly_of(diffusers_rows(blocks))) : bare;
}

ModuleNames sd3_module_names(int blocks) {
  return [transformer = transformer_names(blocks)](const std::string& path) -> std::vector<ModuleName> {
    const auto [component, module] = component_and_module(path);
    if (component == "transformer") return transformer(module);
    if (component == kT5.component) return t5_lora_names(module, kT5);
    for (const TextEncoderNames& clip : {kClipLNames, kClipGNames})
      if (component == clip.component) return clip_lora_names(module, clip);
    return {};  // no LoRA file has a name for the VAE
  };
}

std::map<std::string, std::vector<std::string>> sd3_lora_prefixes() {
  std::map<std::string, std::vector<std::string>> prefixes = {{"transformer", transformer_names(1).prefixes()}};
  for (const TextEncoderNames& encoder : {kClipLNames, kClipGNames, kT5})
    prefixes[encoder.component] = lora_prefixes(encoder);
  return prefixes;
}

std::vector<std::string> sd3_default_targets() { return {"transformer.joint_blocks.*"}; }

}  // namespace wick
