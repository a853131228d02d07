// Weights that bitsandbytes quantised, as transformers, diffusers and tools for ComfyUI save them (bitsandbytes,
// functional.py, QuantState.as_dict, and nn/modules.py).
//
// NF4: X.weight holds two codes in a byte, [(N + 1) / 2, 1], in U8 or in the bytes of a float type; X.weight.absmax the
// largest magnitude of each block, row-major across rows; X.weight.quant_state.bitsandbytes__nf4 is JSON with shape,
// blocksize and more. With double quantisation the magnitudes are U8, codes of X.weight.nested_quant_map, times one of
// X.weight.nested_absmax for each block of them, plus the JSON's nested_offset.
// FP4: the same under bitsandbytes__fp4, with other values for the 16 codes.
// int8: X.weight I8 [N, K], and the largest magnitude of each row, X.SCB, of which a code counts 127ths.
#pragma once

#include "wick/nn/source.h"

namespace wick {

// The tensors of `source`, those of bitsandbytes as f32, and but for FP4 as rows of nf4, nf4_double and int8. Throws
// Error for its other formats, and where what belongs to a weight lacks, does not fit or is not finite.
TensorSource with_bitsandbytes(const TensorSource& source);

// Is it the name of a tensor that belongs to a weight?
bool goes_with_bitsandbytes(std::string_view name);

}  // namespace wick
