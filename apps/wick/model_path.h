// From a user's name for a model to the folder that holds it.
#pragma once

#include <filesystem>
#include <string>

namespace wick::cli {

// A path to a folder of diffusers or transformers, or to a GGUF file; a known name (pipelines/known_models.h); or
// ORGANISATION/NAME, found in the Hugging Face cache. Throws Error that says where it looked.
std::filesystem::path resolve_model(const std::string& model);
// The same, where only a language model will do.
std::filesystem::path resolve_language_model(const std::string& model);

}  // namespace wick::cli
