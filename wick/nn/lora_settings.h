// The settings beside a LoRA's tensors, which give their meaning.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "wick/io/safetensors.h"
#include "wick/nn/peft.h"

namespace wick {

// PEFT's are in a file, diffusers' in the safetensors header; other programs' LoRAs have none.
struct LoraSettings {
  std::optional<PeftConfig> config;             // adapter_config.json
  std::map<std::string, PeftConfig> diffusers;  // by component

  // The file beside one called adapter_model.safetensors, which need not be there.
  static LoraSettings beside(const std::filesystem::path& file);
  void read_header(const SafetensorsFile& file);
  // A module's config by its name in the file, and its name in the model that PEFT wrapped; none without one.
  std::pair<const PeftConfig*, std::string_view> of(std::string_view module, const std::string& file) const;
};

}  // namespace wick
