// Kinds of models, and the names by which users call those that Wick knows.
#pragma once

#include <string>
#include <vector>

#include "wick/nn/checkpoint.h"
#include "wick/pipelines/known_configs.h"

namespace wick {

enum class ModelKind { pictures, text };
// By a model's configs; of pictures where they tell nothing.
ModelKind kind_of(const Checkpoint& model);

struct KnownModel {
  std::string name;
  std::string repository = {};  // on the Hugging Face Hub; empty for a model that ships with Wick
  // For plans without its files: "FLUX", and what they would say.
  std::string family = {};
  ComponentConfigs configs = {};

  Checkpoint without_files() const { return Checkpoint::of_configs("the configs of " + name, family, configs); }
};

// Those of all families; models that ship with Wick come first.
const std::vector<KnownModel>& known_models();
std::vector<std::string> known_model_names();
const KnownModel* find_known(const std::string& name);  // by its name or its repository; null where it is none
// For help texts: "Diffusers or transformers folder, … or a name: …".
const std::string& model_help();

}  // namespace wick
