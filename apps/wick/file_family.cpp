#include "file_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "wick/nn/adapter_algorithm.h"
#include "wick/nn/recognise.h"

namespace wick {
namespace {

// A row fits if one of `any` and, where it is given, `with` begins some key; the first row that fits tells the family.
struct Mark {
  std::vector<std::string_view> any;
  const char* family;
  std::string_view with = "";
};

const std::vector<Mark> kLoraMarks = {
    {{"lora_unet_input_blocks_", "lora_unet_middle_block_", "lora_unet_output_blocks_", "lora_te2_"},
     "SDXL, kohya's names"},
    {{"lora_unet_double_blocks_", "lora_unet_single_blocks_"}, "FLUX, kohya's names"},
    {{"lora_unet_joint_blocks_"}, "SD3, kohya's names"},
    {{"lora_unet_down_blocks_"}, "SDXL, flattened diffusers names", "lora_te1_"},
    {{"lora_unet_down_blocks_", "lora_unet_up_blocks_"}, "SD 1, SD 2 or SDXL, flattened diffusers names"},
    {{"lora_te1_"}, "SDXL or FLUX, kohya's names"},
    {{"lora_te_"}, "SD 1 or SD 2, kohya's names"},
    {{"transformer.single_transformer_blocks."}, "FLUX, diffusers names"},
    {{"transformer.transformer_blocks."}, "SD3 or FLUX, diffusers names"},
    {{"unet."}, "SDXL, diffusers names", "text_encoder_2."},
    {{"unet."}, "SD 1, SD 2 or SDXL, diffusers names"},
    {{"text_encoder_2."}, "SDXL, diffusers names"},
    {{"text_encoder."}, "SD 1, SD 2 or SDXL, diffusers names"},
    {{"diffusion_model.input_blocks.", "diffusion_model.middle_block.", "diffusion_model.output_blocks."},
     "SDXL, ComfyUI's names"},
    {{"text_encoders.clip_g."}, "SDXL or SD3, ComfyUI's names"},
    {{"down_blocks.", "mid_block.", "up_blocks."}, "the UNet of SD 1, SD 2 or SDXL, diffusers names"},
    {{"base_model.model.down_blocks.", "base_model.model.mid_block.", "base_model.model.up_blocks."},
     "the UNet of SD 1, SD 2 or SDXL, PEFT's names"},
    {{"base_model.model.model.layers."}, "a language model, PEFT's names"},
    {{"base_model.model.layers."}, "a language model without its head, PEFT's names"},
    {{"base_model.model.lm_head."}, "the head of a language model, PEFT's names"},
    {{"base_model.model."}, "an unknown model, PEFT's names"},
};

const char* model_of_lora(const SafetensorsFile& file) {
  const auto has_prefix = [&](std::string_view prefix) {
    const auto at = file.tensors().lower_bound(std::string(prefix));
    return at != file.tensors().end() && at->first.starts_with(prefix);
  };
  for (const Mark& mark : kLoraMarks)
    if (std::ranges::any_of(mark.any, has_prefix) && (mark.with.empty() || has_prefix(mark.with))) return mark.family;
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
    const char* model = model_of_lora(file);
    return {.lora = true, .name = fmt::format("{} for {}", algorithm, model ? model : "an unknown model")};
  }
  return {.lora = false, .name = contents_in_words(safetensors_source(file.path()))};
}

}  // namespace wick
