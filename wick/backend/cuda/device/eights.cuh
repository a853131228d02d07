// Eight neighbours in 16 bits, which one instruction loads or stores.
#pragma once

#include "wick/backend/cuda/device/numbers.cuh"

namespace wick {

// Each sum rounded; nothing changes where `b` is kNothingToAdd.
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
