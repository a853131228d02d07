#include "file_family.h"

#include <fmt/format.h>

#include <set>
#include <string>

#include "wick/nn/adapter_algorithm.h"
#include "wick/nn/recognise.h"

namespace wick {
namespace {

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
  return {.lora = false, .name = contents_in_words(safetensors_source(file.path()))};
}

}  // namespace wick
