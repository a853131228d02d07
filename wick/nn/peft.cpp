#include "wick/nn/peft.h"

#include <cmath>
#include <vector>

#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"
#include "wick/io/safetensors.h"

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

constexpr std::string_view kPrefix = "base_model.model.", kDown = ".lora_down.weight", kUp = ".lora_up.weight";

// "q_proj" where every layer's is there, else "model.layers.3.self_attn.q_proj".
std::vector<std::string> target_modules(const std::vector<std::string>& modules, int64_t layers) {
  const auto kind = [](const std::string& module) { return module.substr(module.rfind('.') + 1); };
  std::map<std::string, int64_t> counts;
  for (const std::string& module : modules) ++counts[kind(module)];
  std::vector<std::string> targets;
  for (const std::string& module : modules)
    if (counts.at(kind(module)) != layers) targets.push_back(module);
  for (const auto& [name, count] : counts)
    if (count == layers) targets.push_back(name);
  return targets;
}

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

void write_peft(const std::filesystem::path& folder, const std::map<std::string, Tensor>& tensors,
                const PeftExport& adapter) {
  std::map<std::string, Tensor> renamed;
  std::vector<std::string> modules;
  for (const auto& [name, tensor] : tensors) {
    if (name.ends_with(kDown)) {
      const std::string module = name.substr(0, name.size() - kDown.size());
      renamed[module + ".lora_A.weight"] = tensor;
      modules.push_back(module.substr(kPrefix.size()));
    } else if (name.ends_with(kUp)) {
      renamed[name.substr(0, name.size() - kUp.size()) + ".lora_B.weight"] = tensor;
    }
  }
  const nlohmann::json config = {{"peft_type", "LORA"},
                                 {"task_type", "CAUSAL_LM"},
                                 {"base_model_name_or_path", adapter.base_model},
                                 {"inference_mode", true},
                                 {"r", adapter.rank},
                                 {"lora_alpha", adapter.alpha},
                                 {"lora_dropout", adapter.dropout},
                                 {"target_modules", target_modules(modules, adapter.layers)},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", false},
                                 {"use_rslora", false},
                                 {"use_dora", false}};
  begin_folder(folder, kPeftLast);
  save_safetensors(folder / "adapter_model.safetensors", renamed, {{"format", "pt"}});
  write_file_atomically(folder / kPeftLast, config.dump(2) + "\n");
}

}  // namespace wick
