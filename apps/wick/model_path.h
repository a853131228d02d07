// From a user's name for a model to the folder that holds it.
#pragma once

#include <filesystem>
#include <string>

#include "wick/nn/checkpoint.h"

namespace wick::cli {

// A path to a folder of diffusers or transformers, to a GGUF file, or to one file of a whole model of pictures; a known
// name (pipelines/known_models.h); or ORGANISATION/NAME, found in the Hugging Face cache. Throws Error that says where
// it looked.
std::filesystem::path resolve_model(const std::string& model);
// The same with a model's parts, one of which may be there instead of it.
Checkpoint resolve_model(const ModelFiles& files);
// The same where configs are enough: those that Wick has stand for a known model that is not in the cache.
Checkpoint resolve_model_to_plan(const ModelFiles& files);
// The same as the first, where only a language model will do.
std::filesystem::path resolve_language_model(const std::string& model);

}  // namespace wick::cli
