// Arithmetic of sizes and addresses, on the host and in kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace wick {

template <class A, class B>
__host__ __device__ constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

// Whether 16 bytes there may be read or written as one.
__host__ __device__ inline bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace wick
