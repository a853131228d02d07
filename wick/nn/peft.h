// PEFT's adapters: adapter_model.safetensors, and adapter_config.json with its further settings, such as alphas.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wick/core/tensor.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/nn/name_pattern.h"

namespace wick {

class SafetensorsFile;

// The part of a module's base that PEFT removes when it begins an adapter there, and again whenever it loads one
// (`init_lora_weights`; LoraLayer.update_layer of peft/tuners/lora/layer.py).
enum class TakenFromBase { nothing, largest_part, first_columns };  // the latter are PiSSA's and OLoRA's

// A PeftConfig, mostly a LoraConfig: adapter_config.json, or diffusers' copy of one beside the tensors.
struct PeftConfig {
  using Patterns = std::vector<std::pair<NamePattern, double>>;  // the first that fits a module decides

  enum class Type { lora, loha, lokr, oft, boft, ia3 };

  std::string source;  // the file and, in it, the place: for errors
  Type type = Type::lora;
  std::optional<int64_t> rank;  // unless a pattern tells it
  double alpha = 0;
  bool rslora = false;  // the scale is alpha / sqrt(rank) (Kalajdzievski, 2023)
  Patterns alphas, ranks;
  bool dora = false;  // every module has a magnitude (nn/dora.h)
  bool bias = false;  // and every up its bias
  // Parts of the model whose own weights are in the file, trained: layers whose names end so ("lm_head"), and biases.
  std::vector<std::string> saved = {};
  bool saves_biases = false;
  std::map<std::string, std::vector<int64_t>> tokens = {};  // whose rows are, by the ends of layers' names
  TakenFromBase taken = TakenFromBase::nothing;
  RotationSettings rotation = {};  // OFT's

  // Throws Error naming a setting that changes an adapter's computation and that Wick does not know.
  static PeftConfig read(const std::filesystem::path& file);
  // The value of `lora_adapter_metadata` in a safetensors header, JSON: by component, "unet" of "unet.lora_alpha", and
  // "" where names tell none, as save_lora_adapter() writes it (LORA_ADAPTER_METADATA_KEY of diffusers/loaders).
  static std::map<std::string, PeftConfig> read_diffusers(std::string_view json, const std::string& source);
  // For a module ("model.layers.0.mlp.up_proj") with this rank: alpha / rank is its scale.
  float alpha_of(std::string_view module, int64_t rank) const;
  std::optional<double> rank_of(std::string_view module) const;
  bool saves(std::string_view module) const;
  const std::vector<int64_t>& tokens_of(std::string_view module) const;  // empty: none
};

inline constexpr std::string_view kPeftPrefix = "base_model.model.";  // of the names in PEFT's files
inline constexpr const char* kPeftWeights = "adapter_model.safetensors";
inline constexpr const char* kPeftLast = "adapter_config.json";  // is written last: a folder that has it is whole

// The settings beside a LoRA's tensors, which give their meaning. PEFT's are in a file, diffusers' in the safetensors
// header; other programs' LoRAs have none.
struct LoraSettings {
  std::optional<PeftConfig> config;             // adapter_config.json
  std::map<std::string, PeftConfig> diffusers;  // by component

  // The file beside one called adapter_model.safetensors, which need not be there.
  static LoraSettings beside(const std::filesystem::path& file);
  void read_header(const SafetensorsFile& file);
  // A module's config by its name in the file, and its name in the model that PEFT wrapped; none without one.
  std::pair<const PeftConfig*, std::string_view> of(std::string_view module, const std::string& file) const;
};

struct PeftExport {
  std::string base_model;  // where it was trained from: a note
  double dropout = 0;
  int64_t layers = 0;  // of the model: a kind of module that all layers have is named once
  bool is_language = true;
  std::map<std::string, std::string> metadata = {};  // of the tensors' file, beside its format
  std::map<std::string, std::string> texts = {};     // other files by their names
};
// Writes a folder that PEFT and Adapter::add_file load: `tensors` as Adapter::tensors() gives them, under names that
// begin with "base_model.model.", magnitudes of outputs among them. The commonest rank and alpha become r and
// lora_alpha, others rank_pattern and alpha_pattern. Each file is written whole, kPeftLast last. Throws Error, and
// writes nothing, for a tensor of another algorithm.
void write_peft(const std::filesystem::path& folder, const std::map<std::string, Tensor>& tensors,
                const PeftExport& adapter);

}  // namespace wick
