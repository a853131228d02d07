// Names of SDXL's modules in LoRA files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "wick/models/sdxl/unet.h"

namespace wick {

// LoRA base names of a module: kohya's native spelling first (lora_unet_input_blocks_4_1_…, lora_te1_…), then the
// flattened diffusers spelling (lora_unet_down_blocks_1_…). Source: lora_formats.md sections 1 and 3.
ModuleNames sdxl_module_names(const UNetConfig& config);
// By component: what the base names of its modules start with, in any spelling.
std::map<std::string, std::vector<std::string>> sdxl_lora_prefixes();
// kohya's default for SDXL: every Linear inside the UNet's Transformer2DModels.
std::vector<std::string> sdxl_default_targets();

}  // namespace wick
