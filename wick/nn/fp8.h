// Weights in floats of 8 bits: plain, and scaled as in the files of ComfyUI and of compressed-tensors
// (float-quantized).
//
// A weight X.weight (safetensors' F8_E4M3 or F8_E5M2) is multiplied by its scale, X.scale_weight or, since 2025,
// X.weight_scale: one number, one a row [out] or [out, 1], or several along each row [out, n] or [out, n, 1]
// (musubi-tuner). A scale beside a weight of another float type multiplies it too, as in ComfyUI. Scales of inputs are
// for arithmetic in fp8 and change no weight. New files name each layer's format, in a tensor X.comfy_quant or in the
// header's _quantization_metadata (ComfyUI, QUANTIZATION.md).
#pragma once

#include <map>
#include <string>

#include "wick/nn/source.h"

namespace wick {

// The tensors of `source`, the 8-bit floats among them as f32: value times scale; F8_E4M3 also as rows of fp8 and
// fp8_block. `metadata` is that of the file's
// header. Throws Error for a layer in another format (nvfp4, mxfp8, ComfyUI's int8), which it names.
TensorSource with_fp8(const TensorSource& source, const std::map<std::string, std::string>& metadata = {});

// Is it the name of a scale or a marker, which belongs to a weight or to a whole file?
bool goes_with_fp8(std::string_view name);

}  // namespace wick
