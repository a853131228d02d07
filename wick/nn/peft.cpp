#include "wick/nn/peft.h"

#include <cmath>

#include "wick/io/json.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

// Off in a plain LoRA: absent, null, false, "none" or empty.
constexpr const char* kOff[] = {"use_dora",
                                "use_qalora",
                                "use_bdlora",
                                "lora_bias",
                                "bias",
                                "fan_in_fan_out",
                                "modules_to_save",
                                "trainable_token_indices",
                                "layer_replication",
                                "target_parameters",
                                "velora_config",
                                "alora_invocation_tokens"};

bool is_off(const nlohmann::json& value) { return value == false || value == "none" || value.empty(); }

}  // namespace

PeftConfig PeftConfig::read(const std::filesystem::path& file) {
  const std::string source = file.string();
  const nlohmann::json json = read_json(file);
  const auto type = get<std::string>(json, "peft_type", source);
  check(type == "LORA", "{}: peft_type is {}; Wick reads LORA", source, quote(type));
  for (const char* key : kOff) {
    const auto found = json.find(key);
    if (found != json.end() && !is_off(*found))
      fail("{}: {} is {}; Wick reads plain LoRAs", source, key, quote(found->dump()));
  }
  PeftConfig config;
  config.alpha = get<double>(json, "lora_alpha", source);
  config.rslora = json.contains("use_rslora") && get<bool>(json, "use_rslora", source);
  if (!json.contains("alpha_pattern")) return config;
  const nlohmann::json& patterns = member(json, "alpha_pattern", source);
  if (!patterns.is_object()) fail_json(source + ": alpha_pattern", "an object", patterns);
  for (const auto& [name, alpha] : patterns.items()) {
    const std::string where = source + ": alpha_pattern";
    check(name.find_first_of("^$*+?()[]|\\{}") == name.npos, "{}: {} is a regular expression; Wick reads names", where,
          quote(name));
    config.patterns[name] = as<double>(alpha, where);
  }
  return config;
}

float PeftConfig::alpha_of(std::string_view module, int64_t rank) const {
  double found = alpha;
  for (const auto& [name, value] : patterns)
    if (module == name || module.ends_with("." + name)) found = value;
  return float(rslora ? found * std::sqrt(double(rank)) : found);
}

}  // namespace wick
