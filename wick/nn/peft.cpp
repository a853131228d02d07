#include "wick/nn/peft.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

// Off in a plain LoRA: absent, null, false, "none" or empty.
constexpr const char* kOff[] = {
    "use_qalora",    "use_bdlora",  "fan_in_fan_out",    "layer_replication", "target_parameters",
    "velora_config", "kasa_config", "monteclora_config", "arrow_config",      "alora_invocation_tokens"};

constexpr size_t kMostConfig = size_t{16} << 20;            // bytes
constexpr size_t kMostPatterns = 10000, kMostRegexes = 64;  // each is held against each module

bool is_off(const nlohmann::json& value) { return value == false || value == "none" || value.empty(); }

constexpr const char* kTokens = "trainable_token_indices";
constexpr std::string_view kDown = ".lora_down.weight", kUp = ".lora_up.weight", kMagnitude = ".dora_scale";

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

// A JSON object, and once more with its keys in the file's order: nlohmann's sorts them, while the first of PEFT's
// patterns that fits a module decides.
struct OrderedObject {
  nlohmann::json json;
  nlohmann::ordered_json ordered;

  OrderedObject(std::string_view text, const std::string& source)
      : json(parse_json(text, source)), ordered(nlohmann::ordered_json::parse(text)) {}
};

PeftConfig::Patterns patterns_of(const OrderedObject& all, const std::string& key, const std::string& source) {
  const auto* found = find_member(all.json, key);
  if (!found) return {};
  const std::string where = source + ": " + key;
  as_object(*found, where);
  PeftConfig::Patterns patterns;
  size_t regexes = 0;
  for (const auto& [pattern, value] : all.ordered.at(key).items()) {
    patterns.emplace_back(NamePattern(pattern, where), get<double>(*found, pattern, where));
    regexes += patterns.back().first.is_plain() ? 0 : 1;
    check(patterns.size() <= kMostPatterns && regexes <= kMostRegexes,
          "{}: holds more than {} patterns or {} regular expressions", where, kMostPatterns, kMostRegexes);
  }
  return patterns;
}

std::optional<double> first_fit(const PeftConfig::Patterns& patterns, std::string_view module) {
  const auto fits = [&](const auto& pattern) { return pattern.first.fits(module); };
  const auto found = std::find_if(patterns.begin(), patterns.end(), fits);
  return found == patterns.end() ? std::nullopt : std::optional(found->second);
}

// The changes that these make to the base, when they begin or when PEFT loads them, are no function of the adapter and
// the base: they are drawn at random, made of data that are gone, or quantise the base.
constexpr const char* kLostBeginnings[] = {"pissa_niter_", "corda", "loftq", "lora_ga"};

TakenFromBase taken_by(const nlohmann::json& config, const std::string& key, const std::string& source) {
  const auto* found = find_member(config, key);
  if (!found || found->is_boolean()) return TakenFromBase::nothing;
  const auto name = as<std::string>(*found, source + ": " + key);
  std::string lower = name;
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  if (name == "pissa") return TakenFromBase::largest_part;
  if (lower == "olora") return TakenFromBase::first_columns;
  for (const char* lost : kLostBeginnings)
    check(
        !name.starts_with(lost),
        "{}: {} is {}: the adapter belongs to a base that was changed in a way that cannot be repeated; have PEFT save "
        "it with path_initial_model_for_weight_conversion, or merge it",
        source, key, quote(name));
  check(lower == "gaussian" || lower == "mica" || name == "eva" || name == "orthogonal",
        "{}: {} is {}, which Wick does not know", source, key, quote(name));
  return TakenFromBase::nothing;
}

PeftConfig::Type type_named(const std::string& name, const std::string& source) {
  using Type = PeftConfig::Type;
  constexpr std::pair<std::string_view, Type> kTypes[] = {{"LORA", Type::lora}, {"LOHA", Type::loha},
                                                          {"LOKR", Type::lokr}, {"OFT", Type::oft},
                                                          {"BOFT", Type::boft}, {"IA3", Type::ia3}};
  for (const auto& [known, type] : kTypes)
    if (name == known) return type;
  fail("{}: peft_type is {}; Wick reads LORA, LOHA, LOKR, OFT, BOFT and IA3", source, quote(name));
}

// OFTConfig's. Before it had use_cayley_neumann PEFT computed Cayley's transform.
RotationSettings rotation_of(const nlohmann::json& json, const std::string& source) {
  RotationSettings rotation;
  const auto is_set = [&](const char* key) {
    return json.contains(key) && !json.at(key).is_null() && get<bool>(json, key, source);
  };
  rotation.shares_blocks = is_set("block_share");
  if (is_set("use_cayley_neumann")) rotation.neumann_terms = get<int64_t>(json, "num_cayley_neumann_terms", source);
  const int64_t terms = rotation.neumann_terms.value_or(0);
  check(terms >= 0 && terms <= 1000, "{}: num_cayley_neumann_terms should be from 0 to 1000, found {}", source, terms);
  if (is_set("coft")) rotation.coft_bound = get<double>(json, "eps", source);
  return rotation;
}

void refuse(const nlohmann::json& json, const std::string& key, const std::string& source) {
  const auto found = json.find(key);
  if (found != json.end() && !is_off(*found))
    fail("{}: {} is {}; Wick reads plain LoRAs", source, key, excerpt(found->dump()));
}

// A list is of the embedding.
void read_tokens(const nlohmann::json& json, const std::string& source, PeftConfig& config) {
  const auto* all = find_member(json, kTokens);
  if (!all || is_off(*all)) return;
  const std::string where = source + ": " + kTokens;
  const auto add = [&](const std::string& layer, const nlohmann::json& tokens) {
    for (const nlohmann::json& token : as_list(tokens, where))
      config.tokens[layer].push_back(as<int64_t>(token, where));
  };
  if (all->is_array()) return add("embed_tokens", *all);
  for (const auto& [layer, tokens] : as_object(*all, where).items()) add(layer, tokens);
}

// What PEFT saves of the model itself. diffusers' files have no such.
void read_saved(const nlohmann::json& json, const std::string& source, PeftConfig& config) {
  constexpr const char *kSaved = "modules_to_save", *kBias = "bias";
  if (const auto* saved = find_member(json, kSaved); saved && !is_off(*saved))
    for (const nlohmann::json& name : as_list(*saved, source + ": " + kSaved))
      config.saved.push_back(as<std::string>(name, source + ": " + kSaved));
  if (config.type != PeftConfig::Type::lora) {
    for (const char* key : {kBias, kTokens}) refuse(json, key, source);
    return;
  }
  read_tokens(json, source, config);
  const auto* bias = find_member(json, kBias);
  if (!bias || is_off(*bias)) return;
  config.saves_biases = *bias == "all" || *bias == "lora_only";
  check(config.saves_biases, "{}: bias is {}; Wick knows \"none\", \"all\" and \"lora_only\"", source,
        excerpt(bias->dump()));
}

// The config in the keys that begin with `prefix`.
PeftConfig config_of(const OrderedObject& all, const std::string& prefix, const std::string& source,
                     PeftConfig::Type type = PeftConfig::Type::lora) {
  const nlohmann::json& json = all.json;
  for (const char* key : kOff) refuse(json, prefix + key, source);
  const auto is_given = [&](const char* key) {
    return json.contains(prefix + key) && !json.at(prefix + key).is_null();
  };
  PeftConfig config{.source = source, .type = type};
  if (type == PeftConfig::Type::oft) config.rotation = rotation_of(json, source);
  const bool has_rank =
      type != PeftConfig::Type::oft && type != PeftConfig::Type::boft && type != PeftConfig::Type::ia3;
  if (!has_rank) return config;
  if (is_given("r")) config.rank = get<int64_t>(json, prefix + "r", source);
  check(config.rank.value_or(1) > 0, "{}: {}r should be at least 1, found {}", source, prefix, config.rank.value_or(0));
  config.alpha = get<double>(json, prefix + (type == PeftConfig::Type::lora ? "lora_alpha" : "alpha"), source);
  config.rslora = is_given("use_rslora") && get<bool>(json, prefix + "use_rslora", source);
  config.alphas = patterns_of(all, prefix + "alpha_pattern", source);
  config.ranks = patterns_of(all, prefix + "rank_pattern", source);
  config.bias = is_given("lora_bias") && get<bool>(json, prefix + "lora_bias", source);
  config.dora = is_given("use_dora") && get<bool>(json, prefix + "use_dora", source);
  config.taken = taken_by(json, prefix + "init_lora_weights", source);
  return config;
}

}  // namespace

PeftConfig PeftConfig::read(const std::filesystem::path& file) {
  const OrderedObject all(read_file(file, kMostConfig), file.string());
  const auto type = get<std::string>(all.json, "peft_type", file.string());
  PeftConfig config = config_of(all, "", file.string(), type_named(type, file.string()));
  read_saved(all.json, config.source, config);
  return config;
}

std::map<std::string, PeftConfig> PeftConfig::read_diffusers(std::string_view json, const std::string& source) {
  const OrderedObject all(json, source);
  as_object(all.json, source);
  std::map<std::string, PeftConfig> configs;
  for (const auto& [key, value] : all.json.items()) {
    const std::string component = key.substr(0, key.find('.') == key.npos ? 0 : key.find('.'));
    const std::string prefix = component.empty() ? "" : component + ".";
    for (const char* saved : {"modules_to_save", "bias", kTokens}) refuse(all.json, prefix + saved, source);
    if (!configs.contains(component)) configs.emplace(component, config_of(all, prefix, source));
  }
  return configs;
}

float PeftConfig::alpha_of(std::string_view module, int64_t module_rank) const {
  const double found = first_fit(alphas, module).value_or(alpha);
  return float(rslora ? found * std::sqrt(double(module_rank)) : found);
}

std::optional<double> PeftConfig::rank_of(std::string_view module) const {
  const std::optional<double> found = first_fit(ranks, module);
  return found || !rank ? found : std::optional(double(*rank));
}

bool PeftConfig::saves(std::string_view module) const {
  return std::ranges::any_of(saved, [&](const std::string& name) { return !name.empty() && module.ends_with(name); });
}

const std::vector<int64_t>& PeftConfig::tokens_of(std::string_view module) const {
  static const std::vector<int64_t> none;
  for (const auto& [layer, all] : tokens)
    if (!layer.empty() && module.ends_with(layer)) return all;
  return none;
}

LoraSettings LoraSettings::beside(const std::filesystem::path& file) {
  LoraSettings settings;
  const std::filesystem::path config = file.parent_path() / kPeftLast;
  if (file.filename() == kPeftWeights && std::filesystem::exists(config)) settings.config = PeftConfig::read(config);
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
  std::vector<std::string_view> components;
  for (const auto& [component, settings] : diffusers) components.push_back(component);
  const auto whole = diffusers.find("");
  check(whole != diffusers.end(), "{}: its lora_adapter_metadata tells of {}, but not of {}", file,
        fmt::join(components, " and "), quote(module));
  return {&whole->second, module};
}

namespace {

// The value that most modules have, and by name those of the others.
template <class T>
struct Common {
  T value = 0;
  nlohmann::json others = nlohmann::json::object();

  // `anchor` begins their patterns: names of language models need none.
  explicit Common(const std::map<std::string, T>& of_modules, const std::string& anchor) {
    std::map<T, int64_t> counts;
    for (const auto& [module, number] : of_modules) ++counts[number];
    for (const auto& [number, count] : counts)
      if (count > counts[value]) value = number;
    for (const auto& [module, number] : of_modules)
      if (number != value) others[anchor + module] = number;
  }
};

}  // namespace

void write_peft(const std::filesystem::path& folder, const std::map<std::string, Tensor>& tensors,
                const PeftExport& adapter) {
  std::map<std::string, Tensor> renamed;
  std::map<std::string, int64_t> ranks;
  std::map<std::string, double> alphas;
  bool has_magnitudes = false;
  for (const auto& [name, tensor] : tensors) {
    if (name.ends_with(kMagnitude)) {
      has_magnitudes = true;
      renamed[name.substr(0, name.size() - kMagnitude.size()) + ".lora_magnitude_vector"] = reshape(tensor, {-1});
      continue;
    }
    const std::string module = name.substr(0, name.find(".lora_"));
    if (name.ends_with(kDown)) {
      const std::string in_model = module.substr(kPeftPrefix.size());
      renamed[module + ".lora_A.weight"] = tensor;
      ranks[in_model] = tensor.dim(0);
      alphas[in_model] = double(tensors.at(module + ".alpha").item());
    } else if (name.ends_with(kUp)) {
      renamed[module + ".lora_B.weight"] = tensor;
    } else {
      check(name.ends_with(".alpha"), "{}: {} is no LoRA's or DoRA's, and PEFT's folder would lack it", folder.string(),
            quote(name));
    }
  }
  std::vector<std::string> modules;
  for (const auto& [module, rank] : ranks) modules.push_back(module);
  const std::string anchor = adapter.is_language ? "" : "^";  // "proj_out" is also the end of other modules' names
  const Common rank(ranks, anchor);
  const Common alpha(alphas, anchor);
  const nlohmann::json config = {{"peft_type", "LORA"},
                                 {"task_type", adapter.is_language ? nlohmann::json("CAUSAL_LM") : nlohmann::json()},
                                 {"base_model_name_or_path", adapter.base_model},
                                 {"inference_mode", true},
                                 {"r", rank.value},
                                 {"lora_alpha", alpha.value},
                                 {"rank_pattern", rank.others},
                                 {"alpha_pattern", alpha.others},
                                 {"lora_dropout", adapter.dropout},
                                 {"target_modules", target_modules(modules, adapter.layers)},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", false},
                                 {"use_rslora", false},
                                 {"use_dora", has_magnitudes}};
  begin_folder(folder, kPeftLast);
  std::map<std::string, std::string> metadata = adapter.metadata;
  metadata["format"] = "pt";
  save_safetensors(folder / kPeftWeights, renamed, metadata);
  for (const auto& [name, text] : adapter.texts) write_file_atomically(folder / name, text);
  write_file_atomically(folder / kPeftLast, config.dump(2) + "\n");
}

}  // namespace wick
