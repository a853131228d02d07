// PEFT's adapter_config.json: what its adapter_model.safetensors, which holds no alphas, leaves out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

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

}  // namespace wick
