// Names of FLUX.1's tensors and modules in files. Inside Wick they are those of Black Forest Labs' files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "wick/nn/adapter.h"
#include "wick/nn/source.h"

namespace wick {

// The transformer's tensors under Black Forest Labs' names, whichever names `stored` has: those, perhaps behind
// ComfyUI's "model.diffusion_model." and with its names of norms, or diffusers' (scripts/convert_flux_to_diffusers.py).
TensorSource flux_source(const TensorSource& stored);

// LoRA base names of a module: kohya's first (lora_unet_double_blocks_0_img_attn_qkv, lora_te1_…, lora_te3_… of T5),
// then those of diffusers' modules, of which several make up a fused one.
ModuleNames flux_module_names();
// By component: what the base names of its modules start with, in any spelling.
std::map<std::string, std::vector<std::string>> flux_lora_prefixes();
// kohya's default: every Linear of all blocks. A model may be without single ones.
std::vector<std::string> flux_default_targets(int single_blocks);

}  // namespace wick
