// Functions of the driver, by name: the library that holds them (libcuda.so.1) is not linked.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "wick/backend/cuda/runtime/check.h"

namespace wick {

// The function of that name and of type `F`, as CUDA 12.0 declares it. Throws Error where the driver lacks it.
template <class F>
F driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
  const cudaError_t found = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &status);
#else
  const cudaError_t found = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &status);
#endif
  cuda_check(found, "finding a function of the driver");
  check(function != nullptr, "CUDA: the driver has no {}; a newer driver helps", name);
  return reinterpret_cast<F>(function);
}

}  // namespace wick
