// The denoiser of a model of pictures with quantised matrices, in a file as ComfyUI and bitsandbytes write it.
#pragma once

#include <cstdint>
#include <filesystem>

#include "wick/nn/checkpoint.h"

namespace wick {

struct QuantizedFile {
  int64_t matrices = 0;  // that were quantised
  int64_t kept = 0;      // whose rows are not whole blocks
};

// Writes the file in which `from` has its denoiser, with the matrices of the blocks that repeat in `dtype`; all else in
// it stays as it is, byte for byte. Tensors are made one after the other. Atomic.
//
// fp8:             ComfyUI's scaled fp8 (QUANTIZATION.md, nn/fp8.h): one scale for a matrix, its largest magnitude /
// 448. int8:            bitsandbytes' int8 (nn/bitsandbytes.h), which rounds a matrix to f16 first. nf4, nf4_double:
// bitsandbytes' NF4.
//
// Of a diffusers folder `to` becomes the folder of the denoiser, with a config that tells of bitsandbytes, where
// outermost layers that are called like some of the blocks are quantised too; or, in fp8, a file with diffusers' names.
// Throws Error, before anything is written, for a file that is quantised already, and for values that are not finite or
// that f16 does not hold.
QuantizedFile write_quantized(const Checkpoint& from, const std::filesystem::path& to, DType dtype);

}  // namespace wick
