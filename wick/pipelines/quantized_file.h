// A model with quantised matrices, in files as ComfyUI, bitsandbytes and compressed-tensors write them.
#pragma once

#include <filesystem>
#include <string>

#include "wick/io/safetensors_writer.h"
#include "wick/nn/checkpoint.h"

namespace wick {

// How a single file of a model of pictures has fp8.
enum class Fp8Layout {
  // A scale `.scale_weight` for every matrix of the denoiser, and a tensor `scaled_fp8`. ComfyUI reads it since October
  // 2024, and multiplies in the dtype of activations.
  scaled_fp8,
  // A scale `.weight_scale` and a tensor `.comfy_quant` for each matrix of the blocks that repeat (ComfyUI's
  // QUANTIZATION.md). ComfyUI reads it from 0.4 on, December 2025, and multiplies in fp8 where the device can; older
  // ones take the codes for weights.
  comfy_quant
};

struct QuantizedOptions {
  DType dtype;  // fp8, int8, nf4 or nf4_double
  Fp8Layout fp8_layout = Fp8Layout::scaled_fp8;
  uint64_t shard_bytes = kShardBytes;
  std::optional<std::string> chat_template = {};  // of a language model, in Jinja, instead of its own
};

// Writes a model with the matrices of the blocks that repeat in a dtype; all else stays as it is, byte for byte.
// Each matrix is read and quantised by all threads (in nf4_double and ComfyUI's fp8 read twice: all of it has a part in
// its scales), one after the other. Atomic.
//
// fp8:             of pictures ComfyUI's (nn/fp8.h), in one of its layouts: one scale for a matrix, its largest
//                  magnitude / 448. Of language models compressed-tensors' float-quantized: a scale for each row.
// int8:            bitsandbytes' int8 (nn/bitsandbytes.h), which rounds a matrix to f16 first.
// nf4, nf4_double: bitsandbytes' NF4.
//
// Of a language model, a transformers folder, `to` becomes such a folder, whose config tells how to read it, with
// shards of at most `shard_bytes` where its weights take more. It is new, or empty. Of a model of pictures it becomes
// the file in which `from` has its denoiser; but of a diffusers folder the folder of the denoiser, with a config that
// tells of bitsandbytes, where outermost layers that are called like some of the blocks are quantised too; or, in fp8,
// a file with diffusers' names in the layout comfy_quant. Throws Error, before anything is written, for a model that is
// quantised already, and for values that are not finite or that f16 does not hold; and leaves no new folder behind one.
Weights::Quantized write_quantized(const Checkpoint& from, const std::filesystem::path& to,
                                   const QuantizedOptions& options);

// Whether a model of pictures is a diffusers folder, or has its denoiser in one.
bool has_denoiser_folder(const Checkpoint& from);

// A sentence that tells which programs read what write_quantized() would write: "ComfyUI reads it, …"
// (tools/interop/quantized.py runs ComfyUI's loader).
std::string quantized_readers(const Checkpoint& from, const QuantizedOptions& options);

}  // namespace wick
