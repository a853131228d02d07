// Files of adapters as tensors by name, whatever model they are for: read whole, and written in a program's format.
// Source of the formats: lora_formats.md sections 0 to 2; llama.cpp's convert_lora_to_gguf.py and llama-adapter.cpp.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wick/core/tensor.h"
#include "wick/nn/adapter.h"

namespace wick {

// How a file's tensors are called and where its alphas stand:
//   kohya       NAME.lora_down.weight, .lora_up.weight, .alpha
//   onetrainer  the same under other base names
//   comfy       NAME.lora_A.weight, .lora_B.weight, .alpha
//   diffusers   NAME.lora_A.weight, .lora_B.weight, and lora_adapter_metadata in the header
//   peft        the same in a folder, with adapter_config.json
//   gguf        NAME.lora_a, .lora_b, and one alpha for all
enum class AdapterFormat { kohya, comfy, onetrainer, diffusers, peft, gguf };
const std::vector<std::string>& adapter_format_names();  // in that order
std::optional<AdapterFormat> parse_adapter_format(std::string_view name);
Spelling spelling_of(AdapterFormat format);  // of base names

struct StoredLora {
  Tensor down, up;     // as in the file: [r, in] and [out, r], of a convolution [r, in, kh, kw] and [out, r, 1, 1]
  double alpha = 0;    // the scale is alpha / r
  Tensor stored = {};  // the alpha's tensor, where the file has one

  int64_t rank() const { return up.dim(1); }
  double scale() const { return alpha / double(rank()); }
};

struct AdapterFile {
  std::string name;                         // for errors
  AdapterFormat format;                     // what it is in, or nearest to
  std::map<std::string, StoredLora> loras;  // by base name
  std::map<std::string, Tensor> others;     // tensors of all other algorithms, by key
  std::map<std::string, std::string> metadata;
  std::string base_model;  // that a PEFT config names

  // A file, or a folder of PEFT's or diffusers'. Throws Error for what is no adapter, and for one that PEFT began with
  // a part of its base taken out, which is nothing without that base.
  static AdapterFile read(const std::filesystem::path& path);

  // Atomic; peft is a folder whose config is written last. What the format does not hold was refused before: gguf is
  // written by write_gguf_adapter().
  void write(const std::filesystem::path& path) const;
};

// x times a number: in its own dtype where that holds every product exactly, as it does for powers of two, else in f32.
Tensor scaled_exactly(const Tensor& x, double factor);

}  // namespace wick
