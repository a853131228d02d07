// PEFT's adapters: adapter_model.safetensors, and adapter_config.json with what that leaves out, alphas among it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "wick/core/tensor.h"

namespace wick {

struct PeftConfig {
  double alpha = 0;
  bool rslora = false;                     // the scale is alpha / sqrt(rank) (Kalajdzievski, 2023)
  std::map<std::string, double> patterns;  // alphas of modules that end so: "down_proj", "layers.0.mlp.up_proj"

  // Throws Error naming a setting that changes what an adapter computes and that Wick does not know.
  static PeftConfig read(const std::filesystem::path& file);
  // Of a module ("model.layers.0.mlp.up_proj") with this rank: what divided by the rank is its scale.
  float alpha_of(std::string_view module, int64_t rank) const;
};

inline constexpr const char* kPeftLast = "adapter_config.json";  // is written last: a folder that has it is whole

struct PeftExport {
  std::string base_model;  // where it was trained from: a note
  int64_t rank = 0;
  double alpha = 0, dropout = 0;
  int64_t layers = 0;  // of the model: a kind of module that all of them have is named once
};
// Writes a folder that PEFT and Adapter::add_file load: `tensors` as Adapter::tensors() gives them, under names that
// begin with "base_model.model.". Each file is written whole, kPeftLast last.
void write_peft(const std::filesystem::path& folder, const std::map<std::string, Tensor>& tensors,
                const PeftExport& adapter);

}  // namespace wick
