// Errors of the CUDA runtime become wick::Error, in one line.
#pragma once

#include <cuda_runtime.h>

#include "wick/core/error.h"

namespace wick {

inline void cuda_check(cudaError_t status, const char* what) {
  check(status == cudaSuccess, "CUDA: {} failed: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace wick
