// Quantised blocks on the device: copied, decoded to floats, and made of floats.
#pragma once

#include "wick/backend/cuda/cuda.h"

namespace wick {

// y = x where either has blocks, as CudaBackend::copy(). Blocks lie along rows of views whose outer dims one stride
// walks; other views are an Error.
void copy_blocks(CudaBackend& cuda, const View& y, const View& x);

}  // namespace wick
