// LoRAs put into the weights of a language model, which then needs them no more: w + scale * up down.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "wick/nn/adapter.h"

namespace wick {

// `from` is a transformers folder, and `to` becomes one, with all else that belongs to the model; or `from` is a GGUF
// file, and `to` becomes one. Matrices that change are stored as `dtype`, or else as they were; the others stay. Sums
// are in f32. Throws Error, before anything is written, if a LoRA does not fit the model.
void merge_loras(const std::filesystem::path& from, const std::vector<LoraFile>& loras, const std::filesystem::path& to,
                 std::optional<DType> dtype = {});

}  // namespace wick
