// A model with quantised matrices, in files as ComfyUI, bitsandbytes and compressed-tensors write them.
#pragma once

#include <filesystem>

#include "wick/io/safetensors_writer.h"
#include "wick/nn/checkpoint.h"

namespace wick {

// Writes a model with the matrices of the blocks that repeat in `dtype`; all else stays as it is, byte for byte.
// Each matrix is read and quantised by all threads (in nf4_double and ComfyUI's fp8 read twice: all of it has a part in
// its scales), one after the other. Atomic.
//
// fp8:             of pictures ComfyUI's scaled fp8 (QUANTIZATION.md, nn/fp8.h): one scale for a matrix, its largest
//                  magnitude / 448. Of language models compressed-tensors' float-quantized: a scale for each row.
// int8:            bitsandbytes' int8 (nn/bitsandbytes.h), which rounds a matrix to f16 first.
// nf4, nf4_double: bitsandbytes' NF4.
//
// Of a language model, a transformers folder, `to` becomes such a folder, whose config tells how to read it, with
// shards of at most `shard_bytes` where its weights take more. It is new, or empty. Of a model of pictures it becomes
// the file in which `from` has its denoiser; but of a diffusers folder the folder of the denoiser, with a config that
// tells of bitsandbytes, where outermost layers that are called like some of the blocks are quantised too; or, in fp8,
// a file with diffusers' names. Throws Error, before anything is written, for a model that is quantised already, and
// for values that are not finite or that f16 does not hold; and leaves no new folder behind one.
Weights::Quantized write_quantized(const Checkpoint& from, const std::filesystem::path& to, DType dtype,
                                   uint64_t shard_bytes = kShardBytes);

}  // namespace wick
