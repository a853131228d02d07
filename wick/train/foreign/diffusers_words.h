// Words by which ai-toolkit and OneTrainer choose modules: those that have the word in diffusers' name.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace wick {

enum class DiffusersModel { sdxl, sd3, flux };

// The pattern of all such modules, for --targets; with --split-qkv those of FLUX and SD3 have diffusers' names beside
// Wick's. None where Wick's name of some other module has the word too.
std::optional<std::string> pattern_of_word(DiffusersModel model, std::string_view word);

}  // namespace wick
