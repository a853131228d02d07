#include "wick/models/comfy_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "wick/io/count.h"

namespace wick {
namespace {

// Names are each beginning followed by each end, in which a "*" stands for a number.
struct Names {
  std::vector<std::string_view> beginnings, ends;
};

const std::vector<Names> kNames = {
    // SDXL
    {{"lora_unet_"}, {"input_blocks_0_0", "time_embed_0", "time_embed_2", "label_emb_0_0", "label_emb_0_2", "out_2"}},
    {{"lora_unet_input_blocks_*_*_", "lora_unet_middle_block_*_", "lora_unet_output_blocks_*_*_"},
     {"emb_layers_1", "in_layers_2", "out_layers_3", "proj_in", "proj_out", "transformer_blocks_*_attn1_to_k",
      "transformer_blocks_*_attn1_to_out_0", "transformer_blocks_*_attn1_to_q", "transformer_blocks_*_attn1_to_v",
      "transformer_blocks_*_attn2_to_k", "transformer_blocks_*_attn2_to_out_0", "transformer_blocks_*_attn2_to_q",
      "transformer_blocks_*_attn2_to_v", "transformer_blocks_*_ff_net_0_proj", "transformer_blocks_*_ff_net_2"}},
    {{"lora_unet_input_blocks_*_*_", "lora_unet_output_blocks_*_*_"}, {"skip_connection"}},
    {{"lora_unet_input_blocks_*_0_op", "lora_unet_output_blocks_*_*_conv"}, {""}},
    // FLUX
    {{"lora_unet_double_blocks_*_img_", "lora_unet_double_blocks_*_txt_"},
     {"attn_qkv", "attn_proj", "mlp_0", "mlp_2", "mod_lin"}},
    {{"lora_unet_single_blocks_*_"}, {"linear1", "linear2", "modulation_lin"}},
    {{"lora_unet_guidance_in_", "lora_unet_time_in_", "lora_unet_vector_in_"}, {"in_layer", "out_layer"}},
    {{"lora_unet_"}, {"img_in", "txt_in", "final_layer_adaLN_modulation_1", "final_layer_linear"}},
    // SD3
    {{"lora_unet_joint_blocks_*_context_block_", "lora_unet_joint_blocks_*_x_block_"},
     {"adaLN_modulation_1", "attn_qkv", "attn_proj", "mlp_fc1", "mlp_fc2"}},
    {{"lora_unet_joint_blocks_*_x_block_attn2_"}, {"qkv", "proj"}},
    {{"lora_unet_t_embedder_", "lora_unet_y_embedder_"}, {"mlp_0", "mlp_2"}},
    {{"lora_unet_"}, {"context_embedder", "x_embedder_proj"}},
    // CLIP and T5
    {{"lora_te1_text_model_encoder_layers_*_", "lora_te2_text_model_encoder_layers_*_"},
     {"mlp_fc1", "mlp_fc2", "self_attn_k_proj", "self_attn_out_proj", "self_attn_q_proj", "self_attn_v_proj"}},
    {{"lora_te1_", "lora_te2_"}, {"text_projection"}},
    {{"lora_te3_encoder_block_*_layer_"},
     {"0_SelfAttention_q", "0_SelfAttention_k", "0_SelfAttention_v", "0_SelfAttention_o", "1_DenseReluDense_wi_0",
      "1_DenseReluDense_wi_1", "1_DenseReluDense_wo"}}};

// Takes `pattern` off the front of `name`, if it fits.
bool eat(std::string_view& name, std::string_view pattern) {
  for (const char c : pattern) {
    const size_t taken = c == '*' ? std::min(name.find_first_not_of("0123456789"), name.size())
                                  : size_t(!name.empty() && name.front() == c);
    if (taken == 0) return false;
    name.remove_prefix(taken);
  }
  return true;
}

}  // namespace

bool comfyui_knows(std::string_view base_name) {
  for (const auto& [beginnings, ends] : kNames)
    for (const std::string_view beginning : beginnings) {
      std::string_view rest = base_name;
      if (!eat(rest, beginning)) continue;
      const auto fits = [&](std::string_view end) {
        std::string_view name = rest;
        return eat(name, end) && name.empty();
      };
      if (std::ranges::any_of(ends, fits)) return true;
    }
  return false;
}

std::string comfyui_count(const std::vector<std::string>& base_names) {
  const auto unknown = std::ranges::find_if_not(base_names, comfyui_knows);
  const auto known = size_t(std::ranges::count_if(base_names, comfyui_knows));
  return fmt::format("ComfyUI knows {} of {}{}", known, count_of(base_names.size(), "module"),
                     unknown == base_names.end() ? "" : ", and not " + *unknown);
}

}  // namespace wick
