#include "wick/models/flux/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace wick {
namespace {

// One module, and the modules of diffusers whose rows it has one after the other.
struct Fused {
  std::string_view native;
  std::vector<std::string_view> parts;
};

const Fused kOutsideBlocks[] = {{"img_in", {"x_embedder"}},
                                {"txt_in", {"context_embedder"}},
                                {"time_in.in_layer", {"time_text_embed.timestep_embedder.linear_1"}},
                                {"time_in.out_layer", {"time_text_embed.timestep_embedder.linear_2"}},
                                {"guidance_in.in_layer", {"time_text_embed.guidance_embedder.linear_1"}},
                                {"guidance_in.out_layer", {"time_text_embed.guidance_embedder.linear_2"}},
                                {"vector_in.in_layer", {"time_text_embed.text_embedder.linear_1"}},
                                {"vector_in.out_layer", {"time_text_embed.text_embedder.linear_2"}},
                                {"final_layer.linear", {"proj_out"}}};
const Fused kDoubleBlock[] = {{"img_mod.lin", {"norm1.linear"}},
                              {"txt_mod.lin", {"norm1_context.linear"}},
                              {"img_attn.qkv", {"attn.to_q", "attn.to_k", "attn.to_v"}},
                              {"txt_attn.qkv", {"attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"}},
                              {"img_attn.norm.query_norm", {"attn.norm_q"}},
                              {"img_attn.norm.key_norm", {"attn.norm_k"}},
                              {"txt_attn.norm.query_norm", {"attn.norm_added_q"}},
                              {"txt_attn.norm.key_norm", {"attn.norm_added_k"}},
                              {"img_attn.proj", {"attn.to_out.0"}},
                              {"txt_attn.proj", {"attn.to_add_out"}},
                              {"img_mlp.0", {"ff.net.0.proj"}},
                              {"img_mlp.2", {"ff.net.2"}},
                              {"txt_mlp.0", {"ff_context.net.0.proj"}},
                              {"txt_mlp.2", {"ff_context.net.2"}}};
const Fused kSingleBlock[] = {{"modulation.lin", {"norm.linear"}},
                              {"linear1", {"attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"}},
                              {"linear2", {"proj_out"}},
                              {"norm.query_norm", {"attn.norm_q"}},
                              {"norm.key_norm", {"attn.norm_k"}}};

// Takes "double_blocks.7." away: "7", or nothing.
std::string_view eat_block(std::string_view& name, std::string_view blocks) {
  if (!name.starts_with(blocks)) return {};
  const size_t dot = name.find('.', blocks.size());
  if (dot == name.npos) return {};
  const std::string_view number = name.substr(blocks.size(), dot - blocks.size());
  name.remove_prefix(dot + 1);
  return number;
}

template <size_t N>
std::vector<std::string> parts_of(const Fused (&table)[N], std::string_view module, const std::string& before) {
  const Fused* found = std::ranges::find(table, module, &Fused::native);
  std::vector<std::string> names;
  if (found != std::end(table))
    for (const std::string_view part : found->parts) names.push_back(before + std::string(part));
  return names;
}

std::vector<std::string> diffusers_modules(std::string_view module) {
  if (const std::string_view n = eat_block(module, "double_blocks."); !n.empty())
    return parts_of(kDoubleBlock, module, fmt::format("transformer_blocks.{}.", n));
  if (const std::string_view n = eat_block(module, "single_blocks."); !n.empty())
    return parts_of(kSingleBlock, module, fmt::format("single_transformer_blocks.{}.", n));
  return parts_of(kOutsideBlocks, module, "");
}

// Where diffusers keeps the rows of a tensor. It has the last modulation's scale before its shift.
std::vector<Rows> diffusers_rows(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return {};
  const std::string module = name.substr(0, dot), kind = name.substr(dot + 1);
  const std::string stored_kind = kind == "scale" ? "weight" : kind;  // of the norms
  if (module == "final_layer.adaLN_modulation.1")
    return {{"norm_out.linear." + stored_kind, 1, 2}, {"norm_out.linear." + stored_kind, 0, 2}};
  std::vector<Rows> rows;
  for (const std::string& part : diffusers_modules(module)) rows.push_back({part + "." + stored_kind});
  return rows;
}

std::string underscored(std::string_view name) {
  std::string flat(name);
  std::ranges::replace(flat, '.', '_');
  return flat;
}

}  // namespace

TensorSource flux_source(const TensorSource& stored) {
  if (!stored.has_values) return stored;
  const std::string comfy = "model.diffusion_model.";
  const TensorSource bare = stored.has(comfy + "img_in.weight") ? with_prefix(stored, comfy) : stored;
  return bare.has("x_embedder.weight") ? assembled(bare, diffusers_rows) : bare;
}

ModuleNames flux_module_names() {
  return [](const std::string& path) -> std::vector<std::string> {
    const size_t dot = path.find('.');
    const std::string component = path.substr(0, dot), name = dot == path.npos ? "" : path.substr(dot + 1);
    if (component == "transformer") return {"lora_unet_" + underscored(name), "diffusion_model." + name};
    if (component == "text_encoder")
      return {"lora_te1_" + underscored(name), "text_encoder." + name, "text_encoders.clip_l.transformer." + name};
    if (component == "text_encoder_2")
      return {"lora_te3_" + underscored(name), "lora_te2_" + underscored(name),
              "text_encoders.t5xxl.transformer." + name};
    return {};
  };
}

std::map<std::string, std::vector<std::string>> flux_lora_prefixes() {
  return {{"transformer", {"lora_unet_", "diffusion_model.", "transformer.", "lora_transformer_", "lycoris_"}},
          {"text_encoder", {"lora_te1_", "lora_te_", "text_encoder.", "text_encoders.clip_l."}},
          {"text_encoder_2", {"lora_te3_", "lora_te2_", "text_encoder_2.", "text_encoders.t5xxl."}}};
}

std::vector<std::string> flux_default_targets() {
  return {"transformer.double_blocks.*", "transformer.single_blocks.*"};
}

}  // namespace wick
