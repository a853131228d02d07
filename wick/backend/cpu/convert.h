// Conversions of contiguous floats, rounding to nearest even; NaN stays NaN.
#pragma once

#include <cstdint>

#include "wick/core/dtype.h"

namespace wick {

void load_floats(float* y, const void* x, DType dtype, int64_t n);   // y = x, of any float dtype or in whole blocks
void store_floats(void* y, DType dtype, const float* x, int64_t n);  // y = x

}  // namespace wick
