// A picture's settings as a text for people and other programs: the `parameters` of A1111's web UI (its infotext),
// which Forge writes too, and which ComfyUI's savers, galleries and model sites read.
//
//   a cat, <lora:name:0.8>
//   Negative prompt: blurred
//   Steps: 30, Sampler: Euler, CFG scale: 5, Seed: 1, Size: 1024x1024, Model: name, Version: wick 0.1.0
//
// A value with a comma, a colon or the end of a line in it is a JSON string. Format:
// AUTOMATIC1111/stable-diffusion-webui, modules/processing.py (create_infotext) and modules/infotext_utils.py; Forge's
// `Distilled CFG Scale` is --guidance.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "wick/nn/adapter.h"

namespace wick {

// Settings as PictureSettings::in_use() has them. Several prompts or seeds are the web UI's plot of a grid.
std::string infotext_of(const nlohmann::json& settings, const std::vector<LoraFile>& loras);

struct Infotext {
  nlohmann::json settings;  // the same, as far as Wick has them
  std::string left_out;     // those that it has not, as the text has them
};
// Throws Error if it is none. `source` is the picture.
Infotext read_infotext(std::string_view text, const std::string& source);

}  // namespace wick
