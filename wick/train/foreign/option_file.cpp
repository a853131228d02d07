#include "wick/train/foreign/option_file.h"

#include <algorithm>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/pipelines/diffusion.h"
#include "wick/train/foreign/ai_toolkit.h"
#include "wick/train/foreign/command.h"
#include "wick/train/foreign/kohya.h"
#include "wick/train/foreign/kohya_gui.h"
#include "wick/train/foreign/musubi.h"
#include "wick/train/foreign/onetrainer.h"
#include "wick/train/foreign/tree.h"

namespace wick {
namespace {

using Json = nlohmann::ordered_json;

// Keys of kohya's scripts that Wick has neither as settings nor as aliases.
constexpr std::string_view kOfKohya[] = {
    "network_module", "network_args",  "train_data_dir",          "dataset_config",  "optimizer_type", "optimizer_args",
    "save_precision", "save_model_as", "network_train_unet_only", "mixed_precision", "unet_lr",        "enable_bucket"};

// Programs whose files Wick knows by keys that no other has, and what tells of their settings.
struct KnownFormat {
  std::string_view program;
  std::string_view keys[3];
  std::string_view page;
};
constexpr KnownFormat kKnownFormats[] = {
    {"SimpleTuner", {"--model_family", "model_family", "--data_backend_config"}, "docs/training.md"}};

// Tables are laid flat there.
bool is_of_kohya(const Json& tree) {
  const auto has_one = [](const Json& table) {
    return std::ranges::any_of(kOfKohya, [&](std::string_view key) { return table.contains(key); });
  };
  return has_one(tree) ||
         std::ranges::any_of(tree, [&](const Json& item) { return item.is_object() && has_one(item); });
}

}  // namespace

size_t ForeignConfig::count(KeyUse use) const { return size_t(std::ranges::count(keys, use, &KeyReport::use)); }

// Refused keys come before missing ones: a file for another model misses keys of this one.
void ForeignConfig::check() const {
  std::vector<std::string> all;
  for (const KeyReport& key : keys)
    if (key.use == KeyUse::refused) all.push_back(fmt::format("{}: {}", printable(key.key), key.told));
  all.insert(all.end(), faults.begin(), faults.end());
  if (all.empty()) return;
  const std::string more =
      all.size() == 1 ? ""
                      : fmt::format("; {} refused too, see `wick train --explain-config`",
                                    all.size() == 2 ? "one more is" : fmt::format("{} more are", all.size() - 1));
  fail_usage("{}: {}{}", file, all.front(), more);
}

void ForeignConfig::check_model(const Checkpoint& model) const {
  if (family.empty()) return;
  for (const DiffusionFamily& other : diffusion_families()) {
    if (!other.is_here(model)) continue;
    const auto named = std::ranges::find_if(other.known, [](const KnownModel& known) { return !known.family.empty(); });
    const std::string found = named == other.known.end() ? "" : named->family;
    check_usage(found == family, "{}: {} is for {}, and {} is {}; expected options of that, or another model", file,
                family_key, family, model.name(), found);
    return;
  }
}

std::optional<Trainer> trainer_of(const std::filesystem::path& file) {
  const Json tree = read_option_tree(file);
  if (tree.contains("job") && tree.contains("config")) return Trainer::ai_toolkit;
  if (tree.contains("training_method") && tree.contains("model_type")) return Trainer::onetrainer;
  if (is_of_musubi(tree)) return Trainer::musubi;
  for (const KnownFormat& format : kKnownFormats)
    check_usage(
        !std::ranges::any_of(format.keys, [&](std::string_view key) { return !key.empty() && tree.contains(key); }),
        "{}: is an option file of {}, which Wick does not read; see {}", file.string(), format.program, format.page);
  if (tree.contains(kScriptKey) || is_of_kohya(tree) || is_of_kohya_gui(tree)) return Trainer::kohya;
  check_usage(syntax_of(file) == OptionSyntax::toml,
              "{}: expected Wick's own settings in TOML, or an option file of kohya's scripts, ai-toolkit, "
              "OneTrainer or musubi-tuner, found neither",
              file.string());
  return {};
}

ForeignConfig explain_options(const std::filesystem::path& file, Trainer trainer) {
  switch (trainer) {
    case Trainer::kohya:
      return explain_kohya(file);
    case Trainer::ai_toolkit:
      return explain_ai_toolkit(file);
    case Trainer::onetrainer:
      return explain_onetrainer(file);
    case Trainer::musubi:
      return explain_musubi(file);
  }
  fail("{}: unknown trainer", file.string());
}

}  // namespace wick
