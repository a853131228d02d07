#include <algorithm>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/nn/dora.h"

namespace wick {
namespace {

struct Algorithm {
  std::string_view mark, name;
  bool at_end = false;  // else the mark may stand anywhere
};

constexpr Algorithm kOtherAlgorithms[] = {
    {".oft_blocks.", "OFT in parts of a fused layer"}, {".oft_r", "OFT of PEFT before 0.16"},
    {".oft_s", "OFT of PEFT before 0.16", true},       {".bm.weight", "a GLoRA with a middle factor", true},
    {".reshape_weight", "a reshaping LoRA"},
};

// A row fits if one of `any` and, where it is given, `with` begins some key; the first row that fits tells the model.
struct ModelMark {
  std::vector<std::string_view> any;
  const char* model;
  std::string_view with = "";
};

const std::vector<ModelMark> kModels = {
    {{"lora_unet_double_blocks_", "lora_unet_single_blocks_"}, "FLUX, kohya's names"},
    {{"lora_unet_joint_blocks_"}, "SD3, kohya's names"},
    {{"lora_unet_input_blocks_", "lora_unet_middle_block_", "lora_unet_output_blocks_"}, "SDXL, kohya's names"},
    {{"lora_te3_"}, "SD3, kohya's names", "lora_te2_text_model_"},
    {{"lora_te3_"}, "SD3 or FLUX, kohya's names"},
    {{"lora_te2_encoder_block_"}, "FLUX, OneTrainer's names"},
    {{"lora_unet_down_blocks_"}, "SDXL, flattened diffusers names", "lora_te1_"},
    {{"lora_unet_down_blocks_", "lora_unet_up_blocks_"}, "SD 1, SD 2 or SDXL, flattened diffusers names"},
    {{"lora_te2_text_model_"}, "SDXL or SD3, kohya's names"},
    {{"lora_te1_"}, "SDXL, SD3 or FLUX, kohya's names"},
    {{"lora_te_"}, "SD 1 or SD 2, kohya's names"},
    {{"transformer.single_transformer_blocks.", "single_transformer_blocks."}, "FLUX, diffusers names"},
    {{"base_model.model.single_transformer_blocks."}, "FLUX, PEFT's names"},
    {{"lora_transformer_single_transformer_blocks_"}, "FLUX, OneTrainer's names"},
    {{"lycoris_single_transformer_blocks_"}, "FLUX, SimpleTuner's names"},
    {{"diffusion_model.double_blocks.", "diffusion_model.single_blocks."}, "FLUX, ComfyUI's names"},
    {{"diffusion_model.joint_blocks."}, "SD3, ComfyUI's names"},
    {{"double_blocks.", "single_blocks."}, "FLUX, Black Forest Labs' names"},
    {{"joint_blocks."}, "SD3, Stability's names"},
    {{"base_model.model.double_blocks.", "base_model.model.single_blocks."}, "FLUX, PEFT's names"},
    {{"base_model.model.joint_blocks."}, "SD3, PEFT's names"},
    {{"lora_unet_single_transformer_blocks_", "diffusion_model.single_transformer_blocks."},
     "FLUX, SimpleTuner's earlier names"},
    {{"lora_unet_transformer_blocks_"}, "SD3 or FLUX, SimpleTuner's earlier names"},
    {{"diffusion_model.transformer_blocks."}, "SD3, FLUX or Qwen-Image, diffusers names"},
    {{"lora_unet_model_diffusion_model_"}, "an unknown model, kohya's names"},
    {{"diffusion_model.blocks."}, "Wan, ComfyUI's names"},
    {{"diffusion_model.layers."}, "Z-Image or Lumina 2, ComfyUI's names"},
    {{"transformer.transformer_blocks.", "transformer_blocks."}, "SD3 or FLUX, diffusers names"},
    {{"base_model.model.transformer_blocks."}, "SD3 or FLUX, PEFT's names"},
    {{"lora_transformer_transformer_blocks_"}, "SD3 or FLUX, OneTrainer's names"},
    {{"lycoris_transformer_blocks_"}, "SD3 or FLUX, SimpleTuner's names"},
    {{"unet."}, "SDXL, diffusers names", "text_encoder_2."},
    {{"unet."}, "SD 1, SD 2 or SDXL, diffusers names"},
    {{"text_encoder_3."}, "SD3, diffusers names"},
    {{"text_encoder_2.encoder.block."}, "FLUX, diffusers names"},
    {{"text_encoder_2."}, "SDXL or SD3, diffusers names"},
    {{"text_encoder."}, "SD 1, SD 2, SDXL, SD3 or FLUX, diffusers names"},
    {{"diffusion_model.input_blocks.", "diffusion_model.middle_block.", "diffusion_model.output_blocks."},
     "SDXL, ComfyUI's names"},
    {{"text_encoders.t5xxl."}, "SD3, ComfyUI's names", "text_encoders.clip_g."},
    {{"text_encoders.t5xxl."}, "SD3 or FLUX, ComfyUI's names"},
    {{"text_encoders.clip_g."}, "SDXL or SD3, ComfyUI's names"},
    {{"text_encoders.clip_l."}, "SDXL, SD3 or FLUX, ComfyUI's names"},
    {{"down_blocks.", "mid_block.", "up_blocks."}, "the UNet of SD 1, SD 2 or SDXL, diffusers names"},
    {{"base_model.model.down_blocks.", "base_model.model.mid_block.", "base_model.model.up_blocks."},
     "the UNet of SD 1, SD 2 or SDXL, PEFT's names"},
    {{"base_model.model.model.layers."}, "a language model, PEFT's names"},
    {{"base_model.model.layers."}, "a language model without its head, PEFT's names"},
    {{"base_model.model.lm_head."}, "the head of a language model, PEFT's names"},
    {{"base_model.model."}, "an unknown model, PEFT's names"},
};

}  // namespace

const char* model_of_lora(const std::set<std::string>& keys) {
  const auto begins_some = [&](std::string_view mark) {
    const auto at = keys.lower_bound(std::string(mark));
    return at != keys.end() && at->starts_with(mark);
  };
  for (const auto& [any, model, with] : kModels)
    if (std::ranges::any_of(any, begins_some) && (with.empty() || begins_some(with))) return model;
  return nullptr;
}

void check_extents(const TensorFile& file) {
  for (const auto& [key, info] : file.tensors())
    check(info.shape.numel() > 0, "{}: {} has shape {}, without any element; the file is damaged", file.path().string(),
          quote(key), info.shape);
}

const std::vector<const AdapterAlgorithm*>& adapter_algorithms() {
  static const std::vector<const AdapterAlgorithm*> all = {
      &lora_algorithm(),      &loha_algorithm(),      &lokr_algorithm(),      &full_algorithm(), &norm_algorithm(),
      &glora_algorithm(),     &ia3_algorithm(),       &peft_ia3_algorithm(),  &oft_algorithm(),  &peft_oft_algorithm(),
      &peft_boft_algorithm(), &embedding_algorithm(), &token_rows_algorithm()};
  return all;
}

namespace {

// XLabs' names for LoRAs of FLUX's attentions: "double_blocks.0.processor.qkv_lora1.down.weight".
std::optional<AdapterKey> parse_xlabs_key(std::string_view key) {
  if (key.find(".processor.qkv_lora") == key.npos && key.find(".processor.proj_lora") == key.npos) return {};
  const std::vector<AdapterAlgorithm::Factor>& factors = lora_algorithm().factors();
  for (const auto& [suffix, factor] : {std::pair<std::string_view, size_t>{".down.weight", 0}, {".up.weight", 1}})
    if (key.ends_with(suffix))
      return AdapterKey{key.substr(0, key.size() - suffix.size()), factors[factor].name, &lora_algorithm(), factor};
  return {};
}

}  // namespace

std::optional<AdapterKey> parse_adapter_key(std::string_view key, const std::function<bool(const std::string&)>& has) {
  if (const auto xlabs = parse_xlabs_key(key)) return xlabs;
  const auto module_before = [key](std::string_view suffix) {
    return key.ends_with(suffix) ? key.substr(0, key.size() - suffix.size()) : std::string_view();
  };
  const auto counts = [&](std::string_view module, const AdapterAlgorithm::Factor& factor) {
    if (module.empty() || factor.beside.empty()) return !module.empty();
    return has && has(std::string(module).append(factor.beside));
  };
  for (const AdapterAlgorithm* algorithm : adapter_algorithms())
    for (size_t i = 0; i < algorithm->factors().size(); ++i)
      for (const std::string_view suffix : algorithm->factors()[i].suffixes)
        if (const std::string_view module = module_before(suffix); counts(module, algorithm->factors()[i]))
          return AdapterKey{module, algorithm->factors()[i].name, algorithm, i};
  static constexpr std::pair<std::string_view, std::string_view> kOfAnyAlgorithm[] = {
      {".alpha", "alpha"},
      {".scalar", "scalar"},
      {kMagnitudeKey, "magnitude"},
      {".lora_magnitude_vector", "magnitude"},  // PEFT's
      {".lora_magnitude_vector.weight", "magnitude"},
      {".lora_magnitude_vector.default.weight", "magnitude"}};
  for (const auto& [suffix, name] : kOfAnyAlgorithm)
    if (const std::string_view module = module_before(suffix); !module.empty()) return AdapterKey{module, name};
  return {};
}

std::string_view kind_of(const AdapterKey& key) {
  if (key.algorithm) return key.algorithm->name();
  return key.name == "magnitude" ? "DoRA" : "";
}

std::string_view other_lora_algorithm(std::string_view key) {
  for (const Algorithm& other : kOtherAlgorithms)
    if (other.at_end ? key.ends_with(other.mark) : key.find(other.mark) != key.npos) return other.name;
  return {};
}

bool is_bundled_embedding(std::string_view key) { return key.starts_with("bundle_emb."); }

std::string_view module_of_base(std::string_view key) {
  constexpr std::string_view kBase = ".base_layer.weight", kWeight = ".weight";
  if (key.ends_with(kBase)) return key.substr(0, key.size() - kBase.size());
  if (!key.starts_with("base_model.model.")) return {};
  for (const std::string_view layer : {".embed_tokens.weight", ".lm_head.weight"})
    if (key.ends_with(layer)) return key.substr(0, key.size() - kWeight.size());
  return {};
}

}  // namespace wick
