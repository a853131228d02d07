// Names of SD3's tensors and modules in files. Inside Wick they are those of Stability's files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "wick/nn/adapter.h"
#include "wick/nn/source.h"

namespace wick {

// The transformer's tensors under Stability's names, whichever names `stored` has: those, perhaps behind ComfyUI's
// "model.diffusion_model.", or diffusers' (scripts/convert_sd3_to_diffusers.py).
TensorSource sd3_source(const TensorSource& stored);

// LoRA base names of a module of a model with so many blocks: kohya's first (lora_unet_joint_blocks_0_x_block_attn_qkv;
// lora_te1_… of CLIP-L, lora_te2_… of bigG, lora_te3_… of T5), then those of diffusers' modules, of which several make
// up a fused one.
ModuleNames sd3_module_names(int blocks);
// By component: what the base names of its modules start with, in any spelling.
std::map<std::string, std::vector<std::string>> sd3_lora_prefixes();
// kohya's default: every Linear of all blocks.
std::vector<std::string> sd3_default_targets();

}  // namespace wick
