#include "wick/nn/lora_settings.h"

#include <fmt/ranges.h>

#include <ranges>

#include "wick/core/error.h"
#include "wick/io/quote.h"

namespace wick {

LoraSettings LoraSettings::beside(const std::filesystem::path& file) {
  LoraSettings settings;
  const std::filesystem::path config = file.parent_path() / kPeftLast;
  if (file.filename() == "adapter_model.safetensors" && std::filesystem::exists(config))
    settings.config = PeftConfig::read(config);
  return settings;
}

void LoraSettings::read_header(const SafetensorsFile& file) {
  constexpr const char* kKey = "lora_adapter_metadata";
  const auto found = file.metadata().find(kKey);
  if (found == file.metadata().end() || found->second.empty()) return;
  diffusers = PeftConfig::read_diffusers(found->second, file.path().string() + ": " + kKey);
  check(!diffusers.empty(), "{}: its {} tells of no component", file.path().string(), kKey);
}

// As diffusers' loaders do, which fail where the settings leave out a component that the file has.
std::pair<const PeftConfig*, std::string_view> LoraSettings::of(std::string_view module,
                                                                const std::string& file) const {
  if (config) return {&*config, module.substr(module.starts_with(kPeftPrefix) ? kPeftPrefix.size() : 0)};
  if (diffusers.empty()) return {};
  for (const auto& [component, settings] : diffusers)
    if (!component.empty() && module.starts_with(component + "."))
      return {&settings, module.substr(component.size() + 1)};
  const auto whole = diffusers.find("");
  check(whole != diffusers.end(), "{}: its lora_adapter_metadata tells of {}, but not of {}", file,
        fmt::join(std::views::keys(diffusers), " and "), quote(module));
  return {&whole->second, module};
}

}  // namespace wick
