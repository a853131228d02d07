#include "wick/models/lora_names.h"

#include <algorithm>
#include <set>
#include <utility>

namespace wick {
namespace {

// Old diffusers calls the projections of CLIP as those of the UNet: "self_attn.to_out_lora".
std::string old_projection(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kProjections[] = {
      {"q_proj", "to_q"}, {"k_proj", "to_k"}, {"v_proj", "to_v"}, {"out_proj", "to_out"}};
  const size_t inner = name.rfind('.') + 1;
  for (const auto& [today, old] : kProjections)
    if (inner > 0 && name.substr(inner) == today) return std::string(name.substr(0, inner)).append(old);
  return std::string(name);
}

// Only names with transformers' outer one are written.
void add(std::vector<ModuleName>& names, std::string_view module, const TextEncoderNames& encoder, bool is_written) {
  const auto put = [&](const std::string& name, Spelling spelling) {
    names.emplace_back(name, is_written ? spelling : Spelling::other);
  };
  for (const std::string& prefix : encoder.flattened) {
    const Spelling later = prefix == encoder.onetrainer ? Spelling::onetrainer : Spelling::other;
    put(prefix + underscored(module), prefix == encoder.flattened.front() ? Spelling::kohya : later);
  }
  put(encoder.component + "." + std::string(module), encoder.in_diffusers ? Spelling::diffusers : Spelling::other);
  put("text_encoders." + encoder.comfy + ".transformer." + std::string(module), Spelling::comfy);
}

// Prefixes of native names and of diffusers', whole and flattened: kohya's and ComfyUI's, kohya's behind the prefix of
// ComfyUI's checkpoints; those of diffusers, of save_lora_adapter() and DiffSynth, which have none, of PEFT,
// OneTrainer and SimpleTuner, today's and earlier ones.
struct Prefix {
  const char* text;
  Spelling spelling = Spelling::other;
};
constexpr Prefix kNative[] = {{"diffusion_model.", Spelling::comfy}, {""}, {"base_model.model."}},
                 kNativeFlat[] = {{"lora_unet_", Spelling::kohya}, {"lora_unet_model_diffusion_model_"}};
constexpr Prefix kDiffusers[] = {{"transformer.", Spelling::diffusers},
                                 {""},
                                 {"base_model.model.", Spelling::peft},
                                 {"diffusion_model."}},
                 kDiffusersFlat[] = {{"lora_transformer_", Spelling::onetrainer}, {"lycoris_"}, {"lora_unet_"}};

// The rows of the module that diffusers' module `part` has. A module of which diffusers has the halves in another order
// is that of all parts.
ModuleRows rows_of(const std::vector<Rows>& stored, size_t part, int (*width)(std::string_view part)) {
  ModuleRows rows{{}, 0};
  if (stored.front().of > 1) {
    rows = {std::vector<int>(stored.size()), stored.front().of};
    for (size_t i = 0; i < stored.size(); ++i) rows.parts[size_t(stored[i].index)] = int(i);
    return rows;
  }
  if (stored.size() == 1) return {};
  for (size_t i = 0; i < stored.size(); ++i)
    for (int w = width(stored[i].whole); w > 0; --w, ++rows.of)
      if (i == part) rows.parts.push_back(rows.of);
  return rows;
}

}  // namespace

std::string underscored(std::string_view name) {
  std::string flat(name);
  std::ranges::replace(flat, '.', '_');
  return flat;
}

std::pair<std::string, std::string> component_and_module(const std::string& path) {
  const size_t dot = std::min(path.find('.'), path.size());
  return {path.substr(0, dot), path.substr(std::min(dot + 1, path.size()))};
}

std::vector<std::string> lora_prefixes(const TextEncoderNames& encoder) {
  std::vector<std::string> prefixes = encoder.flattened;
  prefixes.push_back(encoder.component + ".");
  prefixes.push_back("text_encoders." + encoder.comfy + ".");
  return prefixes;
}

std::vector<ModuleName> clip_lora_names(std::string_view module, const TextEncoderNames& encoder) {
  constexpr std::string_view kOuter = "text_model.";
  std::vector<std::string_view> spellings = {module};
  if (module.starts_with(kOuter)) spellings.push_back(module.substr(kOuter.size()));
  std::vector<ModuleName> names;
  for (const std::string_view spelling : spellings) {
    add(names, spelling, encoder, spelling.starts_with(kOuter) || spellings.size() == 1);
    if (const std::string old = old_projection(spelling); old != spelling)
      names.emplace_back(encoder.component + "." + old);
  }
  return names;
}

std::vector<ModuleName> t5_lora_names(std::string_view module, const TextEncoderNames& encoder) {
  std::vector<ModuleName> names;
  add(names, module, encoder, /*is_written=*/true);
  return names;
}

TransformerNames::TransformerNames(std::vector<LayoutRow> rows, int (*width)(std::string_view part))
    : rows_(std::move(rows)), assembly_(assembly_of(rows_)), width_(width) {}

std::vector<ModuleName> TransformerNames::operator()(const std::string& module) const {
  const std::vector<Rows> stored = assembly_(module);
  if (stored.empty()) return {};
  std::vector<ModuleName> names;
  for (const auto& [prefix, spelling] : kNativeFlat) names.emplace_back(prefix + underscored(module), spelling);
  for (const auto& [prefix, spelling] : kNative) names.emplace_back(prefix + module, spelling);
  for (size_t i = 0; i < (stored.front().of > 1 ? 1 : stored.size()); ++i) {
    const ModuleRows rows = rows_of(stored, i, width_);
    const std::string& part = stored[i].whole;
    for (const auto& [prefix, spelling] : kDiffusers) names.emplace_back(prefix + part, rows, spelling);
    for (const auto& [prefix, spelling] : kDiffusersFlat)
      names.emplace_back(prefix + underscored(part), rows, spelling);
  }
  return names;
}

std::vector<std::string> TransformerNames::prefixes() const {
  const auto outermost = [](const std::string& name) { return name.substr(0, name.find('.')); };
  std::set<std::string> all;
  for (const LayoutRow& row : rows_) {
    for (const auto& [prefix, spelling] : kNative) all.insert(prefix + outermost(row.name));
    for (const auto& [prefix, spelling] : kNativeFlat) all.insert(prefix + outermost(row.name));
    for (const Rows& part : row.parts) {
      for (const auto& [prefix, spelling] : kDiffusers) all.insert(prefix + outermost(part.whole));
      for (const auto& [prefix, spelling] : kDiffusersFlat) all.insert(prefix + outermost(part.whole));
    }
  }
  return {all.begin(), all.end()};
}

}  // namespace wick
