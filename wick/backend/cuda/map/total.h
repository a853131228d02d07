// The second stage of sums in double precision, over what the blocks of a kernel left behind.
#pragma once

#include "wick/backend/cuda/cuda.h"

namespace wick {

// y, which has one element, = (sum of n numbers in their order) / divisor; 0 if n is 0.
void total_of(CudaBackend& cuda, View y, const double* partial, int64_t n, double divisor = 1);  // reduce.cu

}  // namespace wick
