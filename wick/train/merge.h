// LoRAs put into the weights of a language model, which then needs them no more: w + scale * up down.
#pragma once

#include <optional>
#include <vector>

#include "wick/nn/adapter.h"
#include "wick/nn/checkpoint.h"

namespace wick {

// `from` is a language model. `to` becomes a GGUF file if its name ends in .gguf or `from` is one;
// else a folder, with all else that belongs to the model. Matrices are stored as `dtype`, or else as they were. Sums
// are in f32. Throws Error, before anything is written, if a LoRA does not fit the model. Returns what
// convert_to_gguf() does; nothing of a folder, which holds no blocks.
Weights::Quantized merge_loras(const Checkpoint& from, const std::vector<LoraFile>& loras,
                               const std::filesystem::path& to, std::optional<DType> dtype = {});

}  // namespace wick
