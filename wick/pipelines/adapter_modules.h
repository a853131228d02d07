// The modules of a model by the names that files of adapters have for them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wick/nn/checkpoint.h"
#include "wick/pipelines/adapter_file.h"
#include "wick/pipelines/diffusion.h"

namespace wick {

// The family whose prefixes fit an adapter's names best; null where none does.
const DiffusionFamily* likeliest_family(const AdapterFile& file);
// The component of a family that a base name is of, "text_encoder"; empty where no prefix fits.
std::string component_of(const DiffusionFamily& family, std::string_view base);

struct NamedModule {
  std::string path;  // in Wick: "transformer.double_blocks.0.img_attn.qkv"
  Shape matrix;      // [out, in], of a convolution [out, in, kh, kw]; empty where it is not known
  std::vector<ModuleName> names;

  // Those that are written in a spelling: one for all of the module, or one for each of its parts, in their order. None
  // where that program does not know the module.
  std::vector<const ModuleName*> spelled(Spelling spelling) const;
};

class AdapterModules {
 public:
  // Of a model whose configs alone are read.
  static AdapterModules of(const Checkpoint& model);
  // Of the model that a file's names and shapes fit, among those that Wick knows by name; of a language model the names
  // alone tell the modules. Throws Error where there is none, which asks for --model.
  static AdapterModules recognised(const AdapterFile& file);

  // Of a model whose names fit, whatever the shapes; nothing where there is none.
  static std::optional<AdapterModules> likeliest(const AdapterFile& file);
  // The file's own modules, for a model that is not known: each has one name, the file's.
  static AdapterModules as_named(const AdapterFile& file);

  const std::string& model() const { return model_; }  // for errors
  const std::vector<NamedModule>& all() const { return modules_; }
  struct Found {
    const NamedModule* module = nullptr;  // null: none
    const ModuleName* name = nullptr;
  };
  Found find(std::string_view base) const;
  // The module whose name a key begins with, before one of its dots.
  Found find_owner(std::string_view key) const;

  bool fits(const AdapterFile& file) const { return mismatch(file).empty(); }
  // Throws Error unless every module of the file is there, in these sizes.
  void check_fits(const AdapterFile& file) const;

 private:
  AdapterModules(std::string model, std::vector<NamedModule> modules);
  static std::optional<AdapterModules> of_language(const AdapterFile& file);
  // In words, what does not fit; empty where all does.
  std::string mismatch(const AdapterFile& file, bool in_size = true) const;

  std::string model_;
  std::vector<NamedModule> modules_;
  struct Place {
    size_t module, name;
  };
  std::map<std::string, Place, std::less<>> places_;  // by base name
};

}  // namespace wick
