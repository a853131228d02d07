// Names of modules in LoRA files, as far as families of models share them. Source: lora_formats.md sections 1, 4 and 5.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wick/nn/adapter.h"
#include "wick/nn/layout.h"

namespace wick {

std::string underscored(std::string_view name);  // "a_b_0" of "a.b.0"
// "transformer" and "img_in" of "transformer.img_in".
std::pair<std::string, std::string> component_and_module(const std::string& path);

// A text encoder as LoRA files call it.
struct TextEncoderNames {
  std::string component;               // in Wick, and before diffusers' names: "text_encoder_2"
  std::vector<std::string> flattened;  // prefixes of underscored names, kohya's first: "lora_te2_"
  std::string comfy;                   // ComfyUI's short name: "clip_g"
  bool in_diffusers = true;            // whose pipelines load LoRAs of it: of no T5
  std::string onetrainer = {};         // its prefix where that is not kohya's
};
inline const TextEncoderNames kClipLNames{"text_encoder", {"lora_te1_", "lora_te_"}, "clip_l"},
    kClipGNames{"text_encoder_2", {"lora_te2_"}, "clip_g"};
// All prefixes of its names.
std::vector<std::string> lora_prefixes(const TextEncoderNames& encoder);
// Names of a module by its name in transformers: of CLIP, whose outer name transformers 5 leaves out, and of T5.
std::vector<ModuleName> clip_lora_names(std::string_view module, const TextEncoderNames& encoder);
std::vector<ModuleName> t5_lora_names(std::string_view module, const TextEncoderNames& encoder);

// A diffusion transformer as LoRA files call it: under its native names and diffusers', which `rows` lead to.
class TransformerNames {
 public:
  // `width` says how wide a part of a fused module is, by its name in diffusers; in units of the narrowest.
  TransformerNames(std::vector<LayoutRow> rows, int (*width)(std::string_view part));

  // Empty for what is no module of the transformer.
  std::vector<ModuleName> operator()(const std::string& module) const;
  // Prefixes that the names of all modules start with.
  std::vector<std::string> prefixes() const;

 private:
  std::vector<LayoutRow> rows_;
  Assembly assembly_;
  int (*width_)(std::string_view part);
};

}  // namespace wick
