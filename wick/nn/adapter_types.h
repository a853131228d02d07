// The types that the tensors of a file of adapters may have.
#pragma once

#include "wick/io/safetensors.h"

namespace wick {

// Throws Error, which names the tensor and its type, unless they hold what they are for: factors, magnitudes,
// embeddings and copies of the base's matrices are floats (F64, F32, F16, BF16, F8_E4M3, F8_E5M2), alphas and scalars
// numbers. kohya's scripts write an alpha that was given as an integer as one. Scales beside factors are those of a
// quantised file, which is refused too.
void check_adapter_types(const SafetensorsFile& file);

}  // namespace wick
