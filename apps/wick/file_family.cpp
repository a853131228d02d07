#include "file_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "wick/nn/adapter_algorithm.h"

namespace wick {
namespace {

// A row fits if each of its prefixes begins some key; the first row that fits tells the family.
struct Mark {
  std::vector<std::string_view> prefixes;
  const char* family;
};

const std::vector<Mark> kLoraMarks = {
    {{"lora_unet_input_blocks_"}, "SDXL, kohya's names"},
    {{"lora_unet_middle_block_"}, "SDXL, kohya's names"},
    {{"lora_unet_output_blocks_"}, "SDXL, kohya's names"},
    {{"lora_te2_"}, "SDXL, kohya's names"},
    {{"lora_unet_double_blocks_"}, "FLUX, kohya's names"},
    {{"lora_unet_single_blocks_"}, "FLUX, kohya's names"},
    {{"lora_unet_joint_blocks_"}, "SD3, kohya's names"},
    {{"lora_unet_down_blocks_", "lora_te1_"}, "SDXL, flattened diffusers names"},
    {{"lora_unet_down_blocks_"}, "SD 1, SD 2 or SDXL, flattened diffusers names"},
    {{"lora_unet_up_blocks_"}, "SD 1, SD 2 or SDXL, flattened diffusers names"},
    {{"lora_te1_"}, "SDXL or FLUX, kohya's names"},
    {{"lora_te_"}, "SD 1 or SD 2, kohya's names"},
    {{"transformer.single_transformer_blocks."}, "FLUX, diffusers names"},
    {{"transformer.transformer_blocks."}, "SD3 or FLUX, diffusers names"},
    {{"unet.", "text_encoder_2."}, "SDXL, diffusers names"},
    {{"unet."}, "SD 1, SD 2 or SDXL, diffusers names"},
    {{"text_encoder_2."}, "SDXL, diffusers names"},
    {{"text_encoder."}, "SD 1, SD 2 or SDXL, diffusers names"},
    {{"diffusion_model.input_blocks."}, "SDXL, ComfyUI's names"},
    {{"diffusion_model.middle_block."}, "SDXL, ComfyUI's names"},
    {{"diffusion_model.output_blocks."}, "SDXL, ComfyUI's names"},
    {{"text_encoders.clip_g."}, "SDXL or SD3, ComfyUI's names"},
    {{"down_blocks."}, "the UNet of SD 1, SD 2 or SDXL, diffusers names"},
    {{"mid_block."}, "the UNet of SD 1, SD 2 or SDXL, diffusers names"},
    {{"up_blocks."}, "the UNet of SD 1, SD 2 or SDXL, diffusers names"},
    {{"base_model.model.down_blocks."}, "the UNet of SD 1, SD 2 or SDXL, PEFT's names"},
    {{"base_model.model.mid_block."}, "the UNet of SD 1, SD 2 or SDXL, PEFT's names"},
    {{"base_model.model.up_blocks."}, "the UNet of SD 1, SD 2 or SDXL, PEFT's names"},
    {{"base_model.model.model.layers."}, "a language model, PEFT's names"},
    {{"base_model.model.layers."}, "a language model without its head, PEFT's names"},
    {{"base_model.model.lm_head."}, "the head of a language model, PEFT's names"},
    {{"base_model.model."}, "an unknown model, PEFT's names"},
};

const std::vector<Mark> kCheckpointMarks = {
    {{"model.diffusion_model.joint_blocks."}, "SD3 checkpoint, single file"},
    {{"model.diffusion_model.double_blocks."}, "FLUX checkpoint, single file"},
    {{"model.diffusion_model.", "conditioner.embedders.1."}, "SDXL checkpoint, single file"},
    {{"model.diffusion_model.", "cond_stage_model."}, "SD 1 or SD 2 checkpoint, single file"},
    {{"double_blocks.", "img_in."}, "FLUX transformer"},
    {{"joint_blocks."}, "SD3 transformer"},
    {{"single_transformer_blocks."}, "FLUX transformer, diffusers names"},
    {{"transformer_blocks.", "pos_embed."}, "SD3 transformer, diffusers names"},
    {{"down_blocks.", "add_embedding.linear_1."}, "SDXL UNet, diffusers names"},
    {{"down_blocks.", "time_embedding."}, "SD 1 or SD 2 UNet, diffusers names"},
    {{"encoder.down_blocks.", "decoder.up_blocks."}, "VAE, diffusers names"},
    {{"encoder.down.", "decoder.up."}, "VAE"},
    {{"text_model.encoder.", "text_projection."}, "CLIP text encoder with projection"},
    {{"text_model.encoder."}, "CLIP text encoder"},
    {{"shared.", "encoder.block."}, "T5 encoder"},
    {{"model.layers.", "model.embed_tokens."}, "language model"},
};

const char* first_fit(const std::vector<Mark>& marks, const SafetensorsFile& file) {
  const auto has_prefix = [&](std::string_view prefix) {
    const auto at = file.tensors().lower_bound(std::string(prefix));
    return at != file.tensors().end() && at->first.starts_with(prefix);
  };
  for (const Mark& mark : marks)
    if (std::all_of(mark.prefixes.begin(), mark.prefixes.end(), has_prefix)) return mark.family;
  return nullptr;
}

// "LoRA", "LoHa", …; empty if the file is no adapter.
std::string algorithm_of(const SafetensorsFile& file) {
  std::string algorithm;
  for (const auto& [key, info] : file.tensors()) {
    if (const auto other = other_lora_algorithm(key); !other.empty()) return std::string(other);
    const auto parsed = parse_adapter_key(key);
    if (parsed && parsed->algorithm) algorithm = "LoRA";
  }
  return algorithm;
}

}  // namespace

FileFamily family_of(const SafetensorsFile& file) {
  if (const std::string algorithm = algorithm_of(file); !algorithm.empty()) {
    const char* model = first_fit(kLoraMarks, file);
    return {.lora = true, .name = fmt::format("{} for {}", algorithm, model ? model : "an unknown model")};
  }
  const char* checkpoint = first_fit(kCheckpointMarks, file);
  return {.lora = false, .name = checkpoint ? checkpoint : "tensors of an unknown kind"};
}

}  // namespace wick
