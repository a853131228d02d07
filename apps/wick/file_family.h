// The kind of a safetensors file, told from the names of its tensors.
#pragma once

#include <string>

#include "wick/io/safetensors.h"

namespace wick {

struct FileFamily {
  bool lora = false;
  std::string name;  // "LoRA for FLUX, kohya's names", "FLUX's transformer and a VAE"
};

FileFamily family_of(const SafetensorsFile& file);

}  // namespace wick
