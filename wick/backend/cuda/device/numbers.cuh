// Element types in device code: every float type is read as f32, computed as f32 and rounded once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

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

// Eight neighbours in 16 bits, which one instruction loads or stores: sums of them, each rounded. Nothing changes where
// `b` is kNothingToAdd.
inline constexpr uint32_t kNothingToAdd = 0x80008000;  // two times -0
template <class T>
__device__ __forceinline__ uint4 sum_of_eights(uint4 a, uint4 b) {
  using Two = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;
  const auto sum = [](uint32_t left, uint32_t right) {
    const Two both = __hadd2(reinterpret_cast<const Two&>(left), reinterpret_cast<const Two&>(right));
    return reinterpret_cast<const uint32_t&>(both);
  };
  return {sum(a.x, b.x), sum(a.y, b.y), sum(a.z, b.z), sum(a.w, b.w)};
}

}  // namespace wick
