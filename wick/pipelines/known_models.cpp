#include "wick/pipelines/known_models.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "wick/models/llama_config.h"
#include "wick/pipelines/diffusion.h"

namespace wick {

ModelKind kind_of(const Checkpoint& model) {
  return LlamaConfig::is_here(model) ? ModelKind::text : ModelKind::pictures;
}

const std::vector<KnownModel>& known_models() {
  static const std::vector<KnownModel> all = [] {
    std::vector<KnownModel> models;
    for (const DiffusionFamily& family : diffusion_families())
      models.insert(models.end(), family.known.begin(), family.known.end());
    models.push_back({"tiny-llm"});
    std::stable_partition(models.begin(), models.end(),
                          [](const KnownModel& model) { return model.repository.empty(); });
    return models;
  }();
  return all;
}

std::vector<std::string> known_model_names() {
  std::vector<std::string> names;
  for (const KnownModel& model : known_models()) names.push_back(model.name);
  return names;
}

const KnownModel* find_known(const std::string& name) {
  if (name.empty()) return nullptr;  // as a model without a repository has it
  const auto found = std::ranges::find_if(
      known_models(), [&](const KnownModel& model) { return model.name == name || model.repository == name; });
  return found == known_models().end() ? nullptr : &*found;
}

const std::string& model_help() {
  static const std::string text =
      fmt::format("Diffusers or transformers folder, model of pictures in one file, GGUF file, or a name: {}",
                  fmt::join(known_model_names(), ", "));
  return text;
}

}  // namespace wick
