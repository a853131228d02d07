// Adapters put into the weights of a model, which then needs them no more: w + scale * up down, of a LoRA.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "wick/nn/adapter.h"
#include "wick/nn/checkpoint.h"

namespace wick {

// `from` is a language model. `to` becomes a GGUF file if its name ends in .gguf or `from` is one;
// else a folder, with all else that belongs to the model. Matrices are stored as `dtype`, or else as they were. Sums
// are in f32. `chat_template`, in Jinja, takes the place of the model's. Throws Error, before anything is written, if a
// LoRA does not fit the model. Returns what convert_to_gguf() does; nothing of a folder, which holds no blocks.
Weights::Quantized merge_loras(const Checkpoint& from, const std::vector<LoraFile>& loras,
                               const std::filesystem::path& to, std::optional<DType> dtype = {},
                               const std::optional<std::string>& chat_template = {});

struct MergedPictures {
  int64_t modules = 0;                            // that changed
  std::vector<std::filesystem::path> files = {};  // that hold them, in `to` or it
};

// `from` is a model of pictures, in any layout of safetensors files; `to` becomes
//   a diffusers folder, of a diffusers folder: all of it;
//   a file, of one file, whose name ends in .safetensors;
//   of a model whose parts were given one by one a folder of those that change, under their names, or a file named so
//   where it is one.
// Names, order, types and metadata stay as they are, and so does every byte of tensors that no adapter changes. Changed
// ones are summed in f32 and rounded to the type that the file has them in; floats of 8 bits with new scales
// (StoredFormat). With `dtype`, which is f32, f16 or bf16, all floats of 8 bits and all matrices get that type. One
// module is in memory at a time. Throws Error, before anything is written, if an adapter does not fit the model; and
// for GGUF files and bitsandbytes' types that it would change.
MergedPictures merge_into_pictures(const Checkpoint& from, const std::vector<LoraFile>& loras,
                                   const std::filesystem::path& to, std::optional<DType> dtype = {});

}  // namespace wick
