// The names of modules in LoRA files that ComfyUI knows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace wick {

// Whether ComfyUI's key map of SDXL, FLUX or SD3 has this base name of kohya's. It leaves modules of other names out,
// and says so in its log alone. Source: comfy/lora.py of Comfy-Org/ComfyUI; lora_formats.md section 1.
bool comfyui_knows(std::string_view base_name);

// "ComfyUI knows 304 of 304 modules", and the first that it does not know.
std::string comfyui_count(const std::vector<std::string>& base_names);

}  // namespace wick
