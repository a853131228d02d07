#include "file_family.h"

#include <fmt/ranges.h>

#include <set>
#include <string>
#include <string_view>

#include "wick/nn/adapter_algorithm.h"
#include "wick/nn/recognise.h"

namespace wick {
namespace {

// "LoRA", "DoRA, LoHa", …; empty if the file is no adapter.
std::string kinds_of(const SafetensorsFile& file) {
  std::set<std::string_view> kinds;
  const auto has = [&](const std::string& key) { return file.tensors().contains(key); };
  for (const auto& [key, info] : file.tensors()) {
    if (const auto other = other_lora_algorithm(key); !other.empty()) return std::string(other);
    if (const auto parsed = parse_adapter_key(key, has))
      if (const std::string_view kind = kind_of(*parsed); !kind.empty()) kinds.insert(kind);
  }
  if (kinds.contains("DoRA")) kinds.erase(lora_algorithm().name());  // under the magnitudes
  return fmt::format("{}", fmt::join(kinds, ", "));
}

}  // namespace

FileFamily family_of(const SafetensorsFile& file) {
  if (const std::string kinds = kinds_of(file); !kinds.empty()) {
    std::set<std::string> keys;
    for (const auto& [key, info] : file.tensors()) keys.insert(key);
    const char* model = model_of_lora(keys);
    return {.lora = true, .name = fmt::format("{} for {}", kinds, model ? model : "an unknown model")};
  }
  return {.lora = false, .name = contents_in_words(safetensors_source(file.path()))};
}

}  // namespace wick
