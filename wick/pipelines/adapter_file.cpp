#include "wick/pipelines/adapter_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/nn/adapter_types.h"
#include "wick/nn/peft.h"
#include "wick/nn/recognise.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr const char *kDiffusersMetadata = "lora_adapter_metadata", *kFoldedAlphas = "wick.folded_alphas";

Tensor load(const SafetensorsFile& file, const std::string& key) {
  return file.tensors().at(key).dtype ? file.load(key) : file.load_numbers(key);
}

// The keys of a module's plain LoRA.
struct Keys {
  std::string down, up, alpha;
  bool is_kohya = false;
};

class Reader {
 public:
  explicit Reader(const fs::path& path)
      : settings_(LoraSettings::beside(path)), file_(SafetensorsFile::open(path)), name_(path.string()) {
    if (!settings_.config) settings_.read_header(file_);
    check_adapter_types(file_);
    index();
  }

  AdapterFile read() const {
    AdapterFile all{.name = name_, .format = format(), .metadata = file_.metadata()};
    for (const auto& [base, keys] : loras_) all.loras[base] = lora(base, keys);
    for (const std::string& key : others_) all.others[key] = load(file_, key);
    unfold(all);
    all.metadata.erase(kDiffusersMetadata);
    return all;
  }

 private:
  void index() {
    check_extents(file_);
    std::set<std::string> alphas;
    for (const auto& [key, info] : file_.tensors()) {
      check(!settings_.config || !settings_.config->saves(module_of_base(key)),
            "{}: {} is a layer of the model itself, trained (modules_to_save), and no other format has that: merge it "
            "into the model",
            name_, quote(key));
      check(module_of_base(key).empty(),
            "{}: {} is a copy of the base model's own weights, which belongs to that model; remove it, or have PEFT "
            "save the adapter with save_embedding_layers=False",
            name_, quote(key));
      const auto parsed = parse_adapter_key(key);
      if (parsed && parsed->algorithm == &lora_algorithm() && (parsed->name == "down" || parsed->name == "up")) {
        Keys& keys = loras_[std::string(parsed->module)];
        (parsed->name == "down" ? keys.down : keys.up) = key;
        keys.is_kohya |= key.ends_with("_down.weight") || key.ends_with("_up.weight");
      } else {
        (parsed && parsed->name == "alpha" ? alphas : others_).insert(key);
      }
    }
    for (const std::string& key : std::set<std::string>(others_)) take_apart(key, alphas);
    for (const std::string& key : alphas) {
      const auto owner = loras_.find(key.substr(0, key.rfind('.')));
      owner == loras_.end() ? void(others_.insert(key)) : void(owner->second.alpha = key);
    }
    check(!loras_.empty() || !others_.empty(), "{}: holds no tensors", name_);
    check(!loras_.empty() || std::ranges::any_of(others_,
                                                 [](const auto& key) {
                                                   return !other_lora_algorithm(key).empty() ||
                                                          (parse_adapter_key(key) && !key.ends_with(".alpha"));
                                                 }),
          "{}: expected a LoRA, found {}", name_, contents_in_words(safetensors_source(file_.path())));
    for (const auto& [base, keys] : loras_)
      check(!keys.down.empty() && !keys.up.empty(), "{}: {} has no {} factor", name_, quote(base),
            keys.down.empty() ? "down" : "up");
  }

  // A module that has another tensor beside its factors (a DoRA's magnitudes, a bias) is no plain LoRA.
  void take_apart(const std::string& key, std::set<std::string>& alphas) {
    for (size_t dot = key.rfind('.'); dot != key.npos && dot > 0; dot = key.rfind('.', dot - 1)) {
      const auto owner = loras_.find(key.substr(0, dot));
      if (owner == loras_.end()) continue;
      for (const std::string& factor : {owner->second.down, owner->second.up})
        if (!factor.empty()) others_.insert(factor);
      if (alphas.erase(owner->first + ".alpha") > 0) others_.insert(owner->first + ".alpha");
      loras_.erase(owner);
      return;
    }
  }

  AdapterFormat format() const {
    if (settings_.config) return AdapterFormat::peft;
    if (!settings_.diffusers.empty()) return AdapterFormat::diffusers;
    const auto is_kohya = [](const auto& entry) { return entry.second.is_kohya; };
    const auto is_comfy = [](const auto& entry) {
      return !entry.second.alpha.empty() || entry.first.starts_with("diffusion_model.") ||
             entry.first.starts_with("text_encoders.");
    };
    if (loras_.empty() || std::ranges::any_of(loras_, is_kohya)) return AdapterFormat::kohya;
    return std::ranges::any_of(loras_, is_comfy) ? AdapterFormat::comfy : AdapterFormat::diffusers;
  }

  Tensor finite(const std::string& key) const {
    const Tensor x = load(file_, key);
    for (const float value : x.to_vector())
      check(std::isfinite(value), "{}: {} holds {}; the LoRA is damaged", name_, quote(key), value);
    return x;
  }

  StoredLora lora(const std::string& base, const Keys& keys) const {
    StoredLora lora{finite(keys.down), finite(keys.up)};
    const auto is_factor = [](const Tensor& x) { return is_float(x.dtype()) && (x.rank() == 2 || x.rank() == 4); };
    check(is_factor(lora.down) && is_factor(lora.up) && lora.up.dim(1) > 0 && lora.up.dim(1) == lora.down.dim(0) &&
              (lora.up.rank() == 2 || (lora.up.dim(2) == 1 && lora.up.dim(3) == 1)),
          "{}: {} and {} should be [rank, in] and [out, rank], found {} and {}", name_, quote(keys.down),
          quote(keys.up), lora.down.shape(), lora.up.shape());
    const auto [config, module] = settings_.of(base, name_);
    check(!config || config->taken == TakenFromBase::nothing,
          "{}: {} belongs to a base of which PEFT took a part out (PiSSA or OLoRA), and no other format has that; have "
          "PEFT save it with path_initial_model_for_weight_conversion",
          name_, quote(base));
    lora.alpha = config ? double(config->alpha_of(module, lora.rank())) : double(lora.rank());
    if (!keys.alpha.empty()) {
      lora.stored = load(file_, keys.alpha);
      check(lora.stored.numel() == 1 && std::isfinite(lora.stored.item()), "{}: {} should be one finite number", name_,
            quote(keys.alpha));
      lora.alpha = double(lora.stored.item());
    }
    return lora;
  }

  // Undoes what write_diffusers() did.
  void unfold(AdapterFile& all) const {
    const auto found = all.metadata.find(kFoldedAlphas);
    if (found == all.metadata.end()) return;
    const nlohmann::json alphas = parse_json(found->second, name_ + ": " + kFoldedAlphas);
    for (auto& [base, lora] : all.loras) {
      if (!alphas.contains(base)) continue;
      const double alpha = get<double>(alphas, base, name_ + ": " + kFoldedAlphas);
      check(std::isfinite(alpha) && alpha != 0, "{}: {} should hold numbers other than 0", name_, kFoldedAlphas);
      const Tensor plain = scaled_exactly(lora.up, double(lora.rank()) / alpha),
                   narrow = cast(plain, lora.down.dtype()), again = scaled_exactly(narrow, alpha / double(lora.rank()));
      const bool was_narrow = again.dtype() == lora.up.dtype() && again.to_vector() == lora.up.to_vector();
      lora.up = was_narrow ? narrow : plain;
      lora.alpha = alpha;
    }
    all.metadata.erase(kFoldedAlphas);
  }

  LoraSettings settings_;
  SafetensorsFile file_;
  std::string name_;
  std::map<std::string, Keys> loras_;
  std::set<std::string> others_;
};

Tensor alpha_tensor(const StoredLora& lora) {
  return lora.stored && double(lora.stored.item()) == lora.alpha ? reshape(lora.stored, {})
                                                                 : full({}, float(lora.alpha));
}

// Hashes of the tensors that a header holds are those of the new ones.
void renew_hashes(std::map<std::string, std::string>& metadata, const std::map<std::string, Tensor>& tensors) {
  metadata.erase("sshs_legacy_hash");
  std::string hash;
  for (const auto& [key, prefix] : {std::pair{"sshs_model_hash", ""}, {"modelspec.hash_sha256", "0x"}}) {
    if (!metadata.contains(key)) continue;
    if (hash.empty()) hash = sha256_of_tensors(tensors);
    metadata[key] = prefix + hash;
  }
}

void write_single(const fs::path& path, const AdapterFile& file, const char* down, const char* up) {
  std::map<std::string, Tensor> tensors = file.others;
  for (const auto& [base, lora] : file.loras) {
    tensors[base + down] = lora.down;
    tensors[base + up] = lora.up;
    tensors[base + ".alpha"] = alpha_tensor(lora);
  }
  std::map<std::string, std::string> metadata = file.metadata;
  renew_hashes(metadata, tensors);
  save_safetensors(path, tensors, metadata);
}

// Settings of a component as save_lora_adapter() of diffusers writes them, of LoRAs whose scale is 1. A pattern begins
// with "^", or "proj_out" would fit "single_transformer_blocks.0.proj_out" too.
void add_settings(nlohmann::json& all, const std::string& component, const std::map<std::string, int64_t>& ranks) {
  std::map<int64_t, int64_t> counts;
  for (const auto& [module, rank] : ranks) ++counts[rank];
  const int64_t commonest = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; })->first;
  nlohmann::json others = nlohmann::json::object(), targets = nlohmann::json::array();
  for (const auto& [module, rank] : ranks) {
    targets.push_back(module);
    if (rank != commonest) others["^" + module] = rank;
  }
  const nlohmann::json settings = {{"r", commonest},          {"lora_alpha", commonest},   {"rank_pattern", others},
                                   {"alpha_pattern", others}, {"target_modules", targets}, {"lora_dropout", 0.0},
                                   {"bias", "none"},          {"use_dora", false},         {"use_rslora", false},
                                   {"peft_type", "LORA"}};
  for (const auto& [key, value] : settings.items()) all[component.empty() ? key : component + "." + key] = value;
}

// The scale goes into the up factor: diffusers reads the settings in the header, others, ComfyUI among them, do not and
// take 1. Alphas beside the settings are none of both: diffusers refuses a FLUX file with them.
void write_diffusers(const fs::path& path, const AdapterFile& file) {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::map<std::string, int64_t>> ranks;  // by component and module
  nlohmann::json folded = nlohmann::json::object(), settings = nlohmann::json::object();
  const auto is_component = [](const std::string& name) {
    return name == "unet" || name == "transformer" || name.starts_with("text_encoder");
  };
  for (const auto& [base, lora] : file.loras) {
    const std::string first = base.substr(0, base.find('.')), component = is_component(first) ? first : "";
    ranks[component][component.empty() ? base : base.substr(first.size() + 1)] = lora.rank();
    tensors[base + ".lora_A.weight"] = lora.down;
    tensors[base + ".lora_B.weight"] = scaled_exactly(lora.up, lora.scale());
    if (lora.scale() != 1 && lora.alpha != 0) folded[base] = lora.alpha;
  }
  for (const auto& [component, modules] : ranks) add_settings(settings, component, modules);
  std::map<std::string, std::string> metadata = file.metadata;
  metadata["format"] = "pt";
  metadata[kDiffusersMetadata] = settings.dump(2);
  if (!folded.empty()) metadata[kFoldedAlphas] = folded.dump();
  renew_hashes(metadata, tensors);
  save_safetensors(path, tensors, metadata);
}

void write_peft_folder(const fs::path& folder, const AdapterFile& file) {
  std::map<std::string, Tensor> tensors;
  for (const auto& [base, lora] : file.loras) {
    tensors[base + ".lora_down.weight"] = lora.down;
    tensors[base + ".lora_up.weight"] = lora.up;
    tensors[base + ".alpha"] = full({}, float(lora.alpha));
  }
  const bool is_language = tensors.begin()->first.starts_with(std::string(kPeftPrefix) + "model.") ||
                           tensors.begin()->first.starts_with(std::string(kPeftPrefix) + "layers.") ||
                           tensors.begin()->first.starts_with(std::string(kPeftPrefix) + "lm_head");
  write_peft(folder, tensors, {.base_model = file.base_model, .is_language = is_language, .metadata = file.metadata});
}

}  // namespace

const std::vector<std::string>& adapter_format_names() {
  static const std::vector<std::string> names = {"kohya", "comfy", "onetrainer", "diffusers", "peft", "gguf"};
  return names;
}

std::optional<AdapterFormat> parse_adapter_format(std::string_view name) {
  const auto& names = adapter_format_names();
  const auto found = std::ranges::find(names, name);
  return found == names.end() ? std::nullopt : std::optional(AdapterFormat(found - names.begin()));
}

Spelling spelling_of(AdapterFormat format) {
  constexpr Spelling kSpellings[] = {Spelling::kohya,     Spelling::comfy, Spelling::onetrainer,
                                     Spelling::diffusers, Spelling::peft,  Spelling::peft};
  return kSpellings[size_t(format)];
}

AdapterFile AdapterFile::read(const fs::path& path) {
  const fs::path weights = lora_weights(path);
  AdapterFile file = Reader(weights).read();
  if (file.format == AdapterFormat::peft)
    if (const auto config = read_json(weights.parent_path() / kPeftLast); config.contains("base_model_name_or_path"))
      if (const auto& base = config.at("base_model_name_or_path"); base.is_string()) file.base_model = base;
  return file;
}

void AdapterFile::write(const fs::path& path) const {
  switch (format) {
    case AdapterFormat::kohya:
    case AdapterFormat::onetrainer:
      return write_single(path, *this, ".lora_down.weight", ".lora_up.weight");
    case AdapterFormat::comfy:
      return write_single(path, *this, ".lora_A.weight", ".lora_B.weight");
    case AdapterFormat::diffusers:
      return write_diffusers(path, *this);
    default:
      return write_peft_folder(path, *this);
  }
}

Tensor scaled_exactly(const Tensor& x, double factor) {
  if (factor == 1) return x;
  std::vector<float> values = x.to_vector();
  const std::vector<float> before = values;
  bool is_exact = true;
  for (float& value : values) {
    const double product = double(value) * factor;
    value = float(product);
    is_exact = is_exact && double(value) == product;
  }
  const Tensor product = Tensor::of(values, x.shape());
  if (!is_exact || x.dtype() == DType::f32) return product;
  const Tensor narrow = cast(product, x.dtype());
  return narrow.to_vector() == values ? narrow : product;
}

}  // namespace wick
