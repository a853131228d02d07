// A LoRA adapter: low-rank factors for the modules of a model that it matches.
//
// Layers ask the adapter once, while they are constructed; models never mention LoRA. In a file a module is
// NAME.lora_down.weight [r, in] ([r, in, kh, kw] for convolutions), NAME.lora_up.weight [out, r], NAME.alpha [];
// the scale is alpha / r, or 1 without an alpha (ComfyUI's rule). Names come from a ModuleNames function of the family.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "wick/core/tensor.h"
#include "wick/nn/weights.h"

namespace wick {

// The factors of one module. For a convolution down is [r, KH, KW, in] and runs with the module's stride and padding.
struct Lora {
  Tensor down;  // [r, in], f32
  Tensor up;    // [out, r], f32
  float scale;  // alpha / r, times the strength
};

struct LoraTarget {  // the module that asks
  int64_t in, out;
  int kernel_h = 1, kernel_w = 1;
  bool conv = false;  // written with 4-D factors
};

// From a module's path in Wick ("unet.mid_block.attentions.0.proj_in") to its base names in LoRA files: the first is the
// one that is written, the others are understood too. Empty for a module that files cannot name.
using ModuleNames = std::function<std::vector<std::string>(const std::string& path)>;

struct LoraConfig {
  int rank = 16;
  std::optional<float> alpha;         // rank unless given
  std::vector<std::string> targets;   // glob patterns on module paths: * matches anything, dots included; a leading
                                      // "-" excludes; later patterns win
  uint64_t seed = 0;
};

class Adapter {
 public:
  // To train: every matching module gets fresh factors. down is Kaiming-uniform(a = sqrt 5), that is uniform in
  // ±1/sqrt(fan_in), drawn from a stream keyed by the module's name, so that no order of construction matters; up is zero.
  Adapter(LoraConfig config, ModuleNames names);
  // To run: factors come from files, each with a strength. Several files on one module add up.
  explicit Adapter(ModuleNames names);
  void add_file(const std::filesystem::path& file, float strength = 1, bool trainable = false);

  // Called by layers.
  std::optional<Lora> match(const std::string& path, const LoraTarget& target);

  // After the model is constructed: throws if a file holds a module that no layer asked for, or if a training adapter
  // matched nothing; the message names the first few.
  void check_complete() const;
  // True if a module under this path prefix ("text_encoder.") is adapted.
  bool covers(const std::string& path_prefix) const;

  // The trainable factors, named as in the file ("lora_unet_….lora_down.weight"), sorted by name.
  std::vector<Parameter> parameters() const;
  size_t module_count() const;
  // The file that ComfyUI loads: factors and alphas in `dtype`. Atomic; the bytes depend on values and metadata alone.
  void save(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata,
            DType dtype = DType::f16) const;
  // Tensors as in the file, f32 and in the file's layout, for tests, hashing and `forward --grad`.
  std::map<std::string, Tensor> tensors() const;

 private:
  struct Module {
    std::string name;  // base name in the file
    LoraTarget target;
    Lora lora;
    float alpha;
  };
  struct Source;

  std::optional<LoraConfig> config_;
  ModuleNames names_;
  std::map<std::string, Module> modules_;         // by module path
  std::vector<std::shared_ptr<Source>> sources_;  // files
};

}  // namespace wick
