// Element types in device code: every float type is read as f32, computed as f32 and rounded once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "wick/core/dtype.h"
#include "wick/core/error.h"

namespace wick {

using bf16 = __nv_bfloat16;
using f16 = __half;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(f16 x) { return __half2float(x); }

template <class T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, bf16>)
    return __float2bfloat16_rn(x);
  else if constexpr (std::is_same_v<T, f16>)
    return __float2half_rn(x);
  else
    return x;
}

// N elements that are loaded and stored as one; 16 bytes are the widest access.
template <class T, int N = 16 / sizeof(T)>
struct alignas(sizeof(T) * N) Pack {
  static constexpr int kSize = N;
  T value[N];
};

template <class T>
struct Type {
  using type = T;
};

// Calls f(Type<T>{}) with the device type of a float dtype.
template <class F>
void dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(Type<float>{});
    case DType::bf16:
      return f(Type<bf16>{});
    case DType::f16:
      return f(Type<f16>{});
    default:
      fail("CUDA: expected a float tensor, found {}", name_of(dtype));
  }
}

}  // namespace wick
