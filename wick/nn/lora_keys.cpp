#include "wick/nn/lora_keys.h"

namespace wick {
namespace {

struct Suffix {
  std::string_view text;
  LoraFactor factor;
};

// How writers spell one factor of a plain LoRA (lora_formats: kohya, PEFT, diffusers before and after 0.20).
constexpr Suffix kSuffixes[] = {
    {".lora_down.weight", LoraFactor::down},
    {".lora_up.weight", LoraFactor::up},
    {".alpha", LoraFactor::alpha},
    {".lora_A.weight", LoraFactor::down},
    {".lora_B.weight", LoraFactor::up},
    {".lora_A.default.weight", LoraFactor::down},
    {".lora_B.default.weight", LoraFactor::up},
    {".lora_A", LoraFactor::down},
    {".lora_B", LoraFactor::up},
    {"_lora.down.weight", LoraFactor::down},
    {"_lora.up.weight", LoraFactor::up},
    {".lora.down.weight", LoraFactor::down},
    {".lora.up.weight", LoraFactor::up},
    {".lora_linear_layer.down.weight", LoraFactor::down},
    {".lora_linear_layer.up.weight", LoraFactor::up},
};

struct Algorithm {
  std::string_view mark, name;
  bool at_end = false;  // else the mark may stand anywhere
};

constexpr Algorithm kOtherAlgorithms[] = {
    {".hada_", "LoHa"},
    {".lokr_", "LoKr"},
    {".dora_scale", "DoRA"},
    {".lora_magnitude_vector", "DoRA"},
    {".lora_mid.", "a Tucker-decomposed LoRA"},
    {".lora_embedding_", "a LoRA of an embedding"},
    {".oft_", "OFT"},
    {".a1.weight", "GLoRA"},
    {".a2.weight", "GLoRA"},
    {".b1.weight", "GLoRA"},
    {".b2.weight", "GLoRA"},
    {".diff", "a full difference", true},
    {".diff_b", "a full difference", true},
    {".set_weight", "a full weight"},
    {".w_norm", "a norm difference"},
    {".b_norm", "a norm difference"},
    {".reshape_weight", "a reshaping LoRA"},
};

}  // namespace

std::optional<LoraKey> parse_lora_key(std::string_view key) {
  for (const Suffix& suffix : kSuffixes)
    if (key.ends_with(suffix.text) && key.size() > suffix.text.size())
      return LoraKey{key.substr(0, key.size() - suffix.text.size()), suffix.factor};
  return {};
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
