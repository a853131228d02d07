#include "file_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "wick/nn/adapter_algorithm.h"

namespace wick {
namespace {

// A row fits if one of `any` and, where it is given, `with` begins some key; the first row that fits tells the family.
struct Mark {
  std::vector<std::string_view> any;
  const char* family;
  std::string_view with = "";
};

const std::vector<Mark> kCheckpointMarks = {
    {{"model.diffusion_model.joint_blocks."}, "SD3 checkpoint, single file"},
    {{"model.diffusion_model.double_blocks."}, "FLUX checkpoint, single file"},
    {{"model.diffusion_model."}, "SDXL checkpoint, single file", "conditioner.embedders.1."},
    {{"model.diffusion_model."}, "SD 1 or SD 2 checkpoint, single file", "cond_stage_model."},
    {{"double_blocks."}, "FLUX transformer", "img_in."},
    {{"joint_blocks."}, "SD3 transformer"},
    {{"single_transformer_blocks."}, "FLUX transformer, diffusers names"},
    {{"transformer_blocks."}, "SD3 transformer, diffusers names", "pos_embed."},
    {{"down_blocks."}, "SDXL UNet, diffusers names", "add_embedding.linear_1."},
    {{"down_blocks."}, "SD 1 or SD 2 UNet, diffusers names", "time_embedding."},
    {{"encoder.down_blocks."}, "VAE, diffusers names", "decoder.up_blocks."},
    {{"encoder.down."}, "VAE", "decoder.up."},
    {{"text_model.encoder."}, "CLIP text encoder with projection", "text_projection."},
    {{"text_model.encoder."}, "CLIP text encoder"},
    {{"shared."}, "T5 encoder", "encoder.block."},
    {{"model.layers."}, "language model", "model.embed_tokens."},
};

const char* first_fit(const std::vector<Mark>& marks, const SafetensorsFile& file) {
  const auto has_prefix = [&](std::string_view prefix) {
    const auto at = file.tensors().lower_bound(std::string(prefix));
    return at != file.tensors().end() && at->first.starts_with(prefix);
  };
  for (const Mark& mark : marks)
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
    std::set<std::string> keys;
    for (const auto& [key, info] : file.tensors()) keys.insert(key);
    const char* model = model_of_lora(keys);
    return {.lora = true, .name = fmt::format("{} for {}", algorithm, model ? model : "an unknown model")};
  }
  const char* checkpoint = first_fit(kCheckpointMarks, file);
  return {.lora = false, .name = checkpoint ? checkpoint : "tensors of an unknown kind"};
}

}  // namespace wick
