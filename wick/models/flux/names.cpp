#include "wick/models/flux/names.h"

#include <optional>
#include <string_view>
#include <utility>

#include "wick/models/lora_names.h"

namespace wick {
namespace {

// Black Forest Labs' modules <- diffusers'. The last modulation has its scale before its shift there.
const std::vector<LayoutRow>& diffusers_rows() {
  static const std::vector<LayoutRow> rows = {
      {"img_in", {{"x_embedder"}}},
      {"txt_in", {{"context_embedder"}}},
      {"time_in.in_layer", {{"time_text_embed.timestep_embedder.linear_1"}}},
      {"time_in.out_layer", {{"time_text_embed.timestep_embedder.linear_2"}}},
      {"guidance_in.in_layer", {{"time_text_embed.guidance_embedder.linear_1"}}},
      {"guidance_in.out_layer", {{"time_text_embed.guidance_embedder.linear_2"}}},
      {"vector_in.in_layer", {{"time_text_embed.text_embedder.linear_1"}}},
      {"vector_in.out_layer", {{"time_text_embed.text_embedder.linear_2"}}},
      {"double_blocks.*.img_mod.lin", {{"transformer_blocks.*.norm1.linear"}}},
      {"double_blocks.*.txt_mod.lin", {{"transformer_blocks.*.norm1_context.linear"}}},
      {"double_blocks.*.img_attn.qkv",
       {{"transformer_blocks.*.attn.to_q"}, {"transformer_blocks.*.attn.to_k"}, {"transformer_blocks.*.attn.to_v"}}},
      {"double_blocks.*.txt_attn.qkv",
       {{"transformer_blocks.*.attn.add_q_proj"},
        {"transformer_blocks.*.attn.add_k_proj"},
        {"transformer_blocks.*.attn.add_v_proj"}}},
      {"double_blocks.*.img_attn.norm.query_norm.scale", {{"transformer_blocks.*.attn.norm_q.weight"}}},
      {"double_blocks.*.img_attn.norm.key_norm.scale", {{"transformer_blocks.*.attn.norm_k.weight"}}},
      {"double_blocks.*.txt_attn.norm.query_norm.scale", {{"transformer_blocks.*.attn.norm_added_q.weight"}}},
      {"double_blocks.*.txt_attn.norm.key_norm.scale", {{"transformer_blocks.*.attn.norm_added_k.weight"}}},
      {"double_blocks.*.img_attn.proj", {{"transformer_blocks.*.attn.to_out.0"}}},
      {"double_blocks.*.txt_attn.proj", {{"transformer_blocks.*.attn.to_add_out"}}},
      {"double_blocks.*.img_mlp.0", {{"transformer_blocks.*.ff.net.0.proj"}}},
      {"double_blocks.*.img_mlp.2", {{"transformer_blocks.*.ff.net.2"}}},
      {"double_blocks.*.txt_mlp.0", {{"transformer_blocks.*.ff_context.net.0.proj"}}},
      {"double_blocks.*.txt_mlp.2", {{"transformer_blocks.*.ff_context.net.2"}}},
      {"single_blocks.*.modulation.lin", {{"single_transformer_blocks.*.norm.linear"}}},
      {"single_blocks.*.linear1",
       {{"single_transformer_blocks.*.attn.to_q"},
        {"single_transformer_blocks.*.attn.to_k"},
        {"single_transformer_blocks.*.attn.to_v"},
        {"single_transformer_blocks.*.proj_mlp"}}},
      {"single_blocks.*.linear2", {{"single_transformer_blocks.*.proj_out"}}},
      {"single_blocks.*.norm.query_norm.scale", {{"single_transformer_blocks.*.attn.norm_q.weight"}}},
      {"single_blocks.*.norm.key_norm.scale", {{"single_transformer_blocks.*.attn.norm_k.weight"}}},
      {"final_layer.adaLN_modulation.1", {{"norm_out.linear", 1, 2}, {"norm_out.linear", 0, 2}}},
      {"final_layer.linear", {{"proj_out"}}}};
  return rows;
}

// The feed-forward's part of a fused module is as wide as its hidden layer.
int width_of(std::string_view part) { return part.ends_with("proj_mlp") ? 4 : 1; }

const TransformerNames& transformer_names() {
  static const TransformerNames names(diffusers_rows(), width_of);
  return names;
}

// Norms of queries and keys are modules in adapters' names, of which files have one tensor.
std::vector<ModuleName> norm_names(const std::string& module) {
  std::vector<ModuleName> names = transformer_names()(module + ".scale");
  for (ModuleName& norm : names)
    for (const std::string_view end : {".scale", "_scale", ".weight", "_weight"})
      if (norm.name.ends_with(end)) norm.name.resize(norm.name.size() - end.size());
  return names;
}

// XLabs': of the attentions of double blocks "processor.qkv_lora1" and "proj_lora1", with 2 of the text's; of single
// blocks without a number.
std::optional<ModuleName> xlabs_name(const std::string& module) {
  const size_t dot = module.find('.', module.find('.') + 1);
  if (dot == module.npos) return {};
  const std::string block = module.substr(0, dot) + ".processor.", inner = module.substr(dot + 1);
  constexpr std::pair<std::string_view, const char*> kNames[] = {{"img_attn.qkv", "qkv_lora1"},
                                                                 {"txt_attn.qkv", "qkv_lora2"},
                                                                 {"img_attn.proj", "proj_lora1"},
                                                                 {"txt_attn.proj", "proj_lora2"},
                                                                 {"linear2", "proj_lora"}};
  if (inner == "linear1") return ModuleName{block + "qkv_lora", {{0, 1, 2}, 7}};
  for (const auto& [ours, theirs] : kNames)
    if (inner == ours) return ModuleName{block + theirs};
  return {};
}

const TextEncoderNames kT5{"text_encoder_2", {"lora_te3_", "lora_te2_"}, "t5xxl", /*in_diffusers=*/false, "lora_te2_"};

// ComfyUI writes norms of queries and keys as it computes them, "query_norm.weight".
std::string comfyui_norm(const std::string& name) {
  constexpr std::string_view kNorm = "_norm.", kScale = "scale";
  if (!name.ends_with(std::string(kNorm).append(kScale))) return name;
  return name.substr(0, name.size() - kScale.size()) + "weight";
}

}  // namespace

TensorSource flux_source(const TensorSource& stored) {
  if (!stored.has_values) return stored;
  const TensorSource bare = without_comfyui_prefix(stored);
  if (bare.has("x_embedder.weight")) return assembled(bare, assembly_of(diffusers_rows()));
  return bare.has(comfyui_norm("double_blocks.0.img_attn.norm.query_norm.scale")) ? renamed(bare, comfyui_norm) : bare;
}

ModuleNames flux_module_names() {
  return [](const std::string& path) -> std::vector<ModuleName> {
    const auto [component, module] = component_and_module(path);
    if (component == kClipLNames.component) return clip_lora_names(module, kClipLNames);
    if (component == kT5.component) return t5_lora_names(module, kT5);
    if (component != "transformer") return {};  // no LoRA file has a name for the VAE
    if (module.ends_with("_norm")) return norm_names(module);
    std::vector<ModuleName> names = transformer_names()(module);
    if (const auto xlabs = xlabs_name(module)) names.push_back(*xlabs);
    if (module.ends_with(".linear1")) names.push_back({"diffusion_model." + module + "_qkv", {{0, 1, 2}, 7}});  // USO
    return names;
  };
}

std::map<std::string, std::vector<std::string>> flux_lora_prefixes() {
  return {{"transformer", transformer_names().prefixes()},
          {kClipLNames.component, lora_prefixes(kClipLNames)},
          {kT5.component, lora_prefixes(kT5)}};
}

std::vector<std::string> flux_default_targets(int single_blocks) {
  if (single_blocks == 0) return {"transformer.double_blocks.*"};
  return {"transformer.double_blocks.*", "transformer.single_blocks.*"};
}

}  // namespace wick
