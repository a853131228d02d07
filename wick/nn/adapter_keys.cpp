#include "wick/nn/adapter_algorithm.h"

namespace wick {
namespace {

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

const std::vector<const AdapterAlgorithm*>& adapter_algorithms() {
  static const std::vector<const AdapterAlgorithm*> all = {&lora_algorithm()};
  return all;
}

std::optional<AdapterKey> parse_adapter_key(std::string_view key) {
  const auto module_before = [key](std::string_view suffix) {
    return key.ends_with(suffix) ? key.substr(0, key.size() - suffix.size()) : std::string_view();
  };
  for (const AdapterAlgorithm* algorithm : adapter_algorithms())
    for (size_t i = 0; i < algorithm->factors().size(); ++i)
      for (const std::string_view suffix : algorithm->factors()[i].suffixes)
        if (const std::string_view module = module_before(suffix); !module.empty())
          return AdapterKey{module, algorithm->factors()[i].name, algorithm, i};
  if (const std::string_view module = module_before(".alpha"); !module.empty()) return AdapterKey{module, "alpha"};
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
