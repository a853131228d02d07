#include "wick/pipelines/adapter_modules.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "wick/backend/counting.h"
#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/models/llama.h"
#include "wick/nn/peft.h"

namespace wick {
namespace {

// The modules of a model of pictures as its layers ask an adapter for them.
std::vector<NamedModule> modules_of_pictures(const Checkpoint& model) {
  CountingBackend counting(device_kind("cpu"));
  const std::unique_ptr<Diffusion> diffusion = open_diffusion(model);
  std::map<std::string, std::string> paths;  // by the first of their names
  const ModuleNames names = diffusion->lora().names, recording = [&](const std::string&path) {
    const std::vector<ModuleName> all = names(path);
    if (!all.empty()) paths[all.front().name] = path;
    return all;
  };
  Adapter adapter({.rank = 1, .targets = {"*"}}, recording);
  diffusion->load({.adapter = &adapter, .backend = &counting, .outline = true},
                  {DiffusionPart::text_encoders, DiffusionPart::denoiser});
  const std::map<std::string, Tensor> factors = adapter.tensors();
  std::vector<NamedModule> modules;
  for (const auto& [name, path] : paths) {
    Shape matrix = factors.at(name + ".lora_down.weight").shape();
    matrix[0] = factors.at(name + ".lora_up.weight").dim(0);
    modules.push_back({path, matrix, names(path)});
  }
  return modules;
}

// And its norms, which have a weight and no matrix.
void add_other_modules(const Checkpoint& model, std::vector<NamedModule>& modules) {
  CountingBackend counting(device_kind("cpu"));
  const std::unique_ptr<Diffusion> diffusion = open_diffusion(model);
  diffusion->load({.trainable = true, .backend = &counting, .outline = true}, {DiffusionPart::denoiser});
  std::set<std::string> known;
  for (const NamedModule& module : modules) known.insert(module.path);
  const ModuleNames names = diffusion->lora().names;
  for (const Parameter& parameter : diffusion->denoiser_weights().parameters()) {
    const std::string path = diffusion->denoiser() + "." + parameter.name.substr(0, parameter.name.rfind('.'));
    if (!known.insert(path).second) continue;
    if (std::vector<ModuleName> all = names(path); !all.empty()) modules.push_back({path, {}, std::move(all)});
  }
}

std::vector<NamedModule> modules_of_text(const Checkpoint& model) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<NamedModule> modules;
  const LlamaConfig config = LlamaConfig::read(model);
  std::vector<std::pair<std::string, Shape>> tensors = llama_tensors(config);
  if (config.tied) tensors.push_back({"lm_head.weight", {config.vocab, config.hidden}});
  for (const auto& [name, shape] : tensors) {
    if (shape.rank() != 2 || !name.ends_with(kWeight)) continue;
    const std::string path = "llama." + name.substr(0, name.size() - kWeight.size());
    modules.push_back({path, shape, llama_module_names()(path)});
  }
  return modules;
}

// The name in LlamaForCausalLM; empty for what is no module of a language model.
std::string language_module(std::string_view base) {
  if (!base.starts_with(kPeftPrefix)) return {};
  const std::string_view name = base.substr(kPeftPrefix.size());
  if (name.starts_with("model.layers.") || name == "lm_head" || name == "model.embed_tokens") return std::string(name);
  return name.starts_with("layers.") ? "model." + std::string(name) : std::string();
}

// The component that a base name is of, and how much of the name says so.
std::pair<std::string, size_t> component_in(const DiffusionFamily& family, std::string_view base) {
  std::pair<std::string, size_t> found;
  for (const Component& component : family.components)
    for (const std::string& prefix : component.lora_prefixes)
      if (base.starts_with(prefix) && prefix.size() > found.second) found = {component.name, prefix.size()};
  return found;
}

std::vector<KnownModel> distinct_models(const DiffusionFamily& family) {
  std::vector<KnownModel> models;
  std::set<ComponentConfigs> seen;
  for (const KnownModel& known : family.known)
    if (!known.configs.empty() && seen.insert(known.configs).second) models.push_back(known);
  return models;
}

// [out, in, kh, kw] of the rows that a name stands for; empty where the shapes are no LoRA's of a module.
Shape matrix_of(const StoredLora& lora) {
  Shape matrix = lora.down.shape();
  matrix[0] = lora.up.dim(0);
  return matrix;
}

// A matrix may be stored as a convolution of one pixel and the other way round.
bool is_of_size(const StoredLora& lora, const ModuleRows& rows, const Shape& matrix) {
  const Shape found = matrix_of(lora);
  const auto side = [](const Shape& shape) { return shape.rank() == 4 ? shape[2] * shape[3] : 1; };
  return found[0] * rows.of == matrix[0] * int64_t(rows.parts.size()) && found[1] == matrix[1] &&
         side(found) == side(matrix);
}

}  // namespace

const DiffusionFamily* likeliest_family(const AdapterFile& file) {
  const DiffusionFamily* best = nullptr;
  size_t most = 0;
  for (const DiffusionFamily& family : diffusion_families()) {
    size_t sum = 0;
    for (const auto& [base, lora] : file.loras) sum += component_in(family, base).second;
    for (const auto& [key, tensor] : file.others) sum += component_in(family, key).second;
    if (sum > most) best = &family, most = sum;
  }
  return best;
}

std::string component_of(const DiffusionFamily& family, std::string_view base) {
  return component_in(family, base).first;
}

std::vector<const ModuleName*> NamedModule::spelled(Spelling spelling) const {
  std::vector<const ModuleName*> found;
  for (const ModuleName& name : names)
    if (name.spelling == spelling) found.push_back(&name);
  if (found.empty() && spelling == Spelling::onetrainer) return spelled(Spelling::kohya);
  return found;
}

AdapterModules::AdapterModules(std::string model, std::vector<NamedModule> modules)
    : model_(std::move(model)), modules_(std::move(modules)) {
  for (size_t i = 0; i < modules_.size(); ++i)
    for (size_t j = 0; j < modules_[i].names.size(); ++j) places_.try_emplace(modules_[i].names[j].name, Place{i, j});
}

AdapterModules AdapterModules::of(const Checkpoint& model) {
  if (kind_of(model) == ModelKind::text) return {model.name(), modules_of_text(model)};
  std::vector<NamedModule> modules = modules_of_pictures(model);
  add_other_modules(model, modules);
  return {model.name(), std::move(modules)};
}

std::optional<AdapterModules> AdapterModules::of_language(const AdapterFile& file) {
  std::vector<NamedModule> modules;
  for (const auto& [base, lora] : file.loras)
    if (const std::string name = language_module(base); !name.empty())
      modules.push_back({"llama." + name, matrix_of(lora), llama_module_names()("llama." + name)});
  if (modules.empty()) return {};
  return AdapterModules("a language model", std::move(modules));
}

AdapterModules AdapterModules::recognised(const AdapterFile& file) {
  if (std::optional<AdapterModules> language = of_language(file)) return *std::move(language);
  const DiffusionFamily* family = likeliest_family(file);
  check(family, "{}: its names tell of no model that Wick knows; say by --model which one it is for", file.name);
  std::string closest;
  for (const KnownModel& known : distinct_models(*family)) {
    const AdapterModules modules = of(known.without_files());
    const std::string mismatch = modules.mismatch(file);
    if (mismatch.empty()) return modules;
    if (closest.empty()) closest = fmt::format("of {}, {}", known.name, mismatch);
  }
  fail("{}: fits none of the models that Wick knows by name: {}; say by --model which one it is for", file.name,
       closest);
}

std::optional<AdapterModules> AdapterModules::likeliest(const AdapterFile& file) {
  if (std::optional<AdapterModules> language = of_language(file)) return language;
  std::optional<AdapterModules> by_names;
  if (const DiffusionFamily* family = likeliest_family(file))
    for (const KnownModel& known : distinct_models(*family)) {
      AdapterModules modules = of(known.without_files());
      if (!modules.mismatch(file, /*in_size=*/false).empty()) continue;
      if (modules.mismatch(file).empty()) return modules;
      if (!by_names) by_names = std::move(modules);
    }
  return by_names;
}

AdapterModules AdapterModules::as_named(const AdapterFile& file) {
  const DiffusionFamily* family = likeliest_family(file);
  std::vector<NamedModule> modules;
  for (const auto& [base, lora] : file.loras) {
    const std::string component = family ? component_of(*family, base) : "";
    modules.push_back({component.empty() ? base : component + "." + base,
                       matrix_of(lora),
                       {ModuleName(base, spelling_of(file.format))}});
  }
  return {"the model of " + file.name, std::move(modules)};
}

AdapterModules::Found AdapterModules::find(std::string_view base) const {
  const auto found = places_.find(base);
  if (found == places_.end()) return {};
  const NamedModule& module = modules_[found->second.module];
  return {&module, &module.names[found->second.name]};
}

AdapterModules::Found AdapterModules::find_owner(std::string_view key) const {
  for (size_t dot = key.rfind('.'); dot != key.npos && dot > 0; dot = key.rfind('.', dot - 1))
    if (const Found found = find(key.substr(0, dot)); found.module) return found;
  return {};
}

std::string AdapterModules::mismatch(const AdapterFile& file, bool in_size) const {
  for (const auto& [base, lora] : file.loras) {
    const Found found = find(base);
    if (!found.module) return fmt::format("{} is no module", quote(base));
    const Shape& matrix = found.module->matrix;
    if (in_size && matrix.rank() > 0 && !is_of_size(lora, found.name->rows, matrix))
      return fmt::format("the module of {} is {}", quote(base), matrix);
  }
  for (const auto& [key, tensor] : file.others)
    if (!is_bundled_embedding(key) && !find_owner(key).module) return fmt::format("{} is of no module", quote(key));
  return {};
}

void AdapterModules::check_fits(const AdapterFile& file) const {
  const std::string found = mismatch(file);
  check(found.empty(), "{}: is no adapter of {}: there {}", file.name, model_, found);
}

}  // namespace wick
