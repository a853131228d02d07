// Names of the UNet's tensors in single files, and of SDXL's modules in LoRA files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "wick/models/sdxl/unet.h"

namespace wick {

// The UNet's tensors under diffusers' names, whether they are stored so or as the original code names them
// ("model.diffusion_model.input_blocks.4.1…", Stability-AI/generative-models, openaimodel.py).
TensorSource sdxl_source(const TensorSource& stored);

// LoRA base names of a module: kohya's native spelling first (lora_unet_input_blocks_4_1_…, lora_te1_…), then the
// flattened diffusers spelling (lora_unet_down_blocks_1_…). Source: lora_formats.md sections 1 and 3.
ModuleNames sdxl_module_names(const UNetConfig& config);
// By component: what the base names of its modules start with, in any spelling.
std::map<std::string, std::vector<std::string>> sdxl_lora_prefixes();
// kohya's default for SDXL: every Linear inside the UNet's Transformer2DModels.
std::vector<std::string> sdxl_default_targets();
// What kohya's conv_dim adds: all of ResnetBlock2D, Downsample2D and Upsample2D, linears too (networks/lora.py).
std::vector<std::string> sdxl_conv_targets();

}  // namespace wick
