// Codes of 8 bits, E4M3 (core/row_formats.h), to their bits there.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace wick {

__device__ __forceinline__ float e4m3_value(uint32_t code) {
  const float half_scaled = __half2float(__ushort_as_half(uint16_t((code & 0x80) << 8 | (code & 0x7f) << 7)));
  return (code & 0x7f) == 0x7f ? NAN : half_scaled * 256;  // f16 has a fifth bit of exponent, biased by 15
}

__device__ __forceinline__ uint8_t e4m3_code(float value) {
  const uint32_t bits = __float_as_uint(value), sign = bits >> 24 & 0x80;
  const float magnitude = fabsf(value);
  if (isnan(value)) return uint8_t(sign | 0x7f);
  if (magnitude >= 448) return uint8_t(sign | 0x7e);
  if (magnitude < 0x1p-6f) return uint8_t(sign | uint32_t(rintf(magnitude * 512)));
  const uint32_t rounded = (bits & 0x7fffffffu) + 0x7ffffu + (bits >> 20 & 1);
  return uint8_t(sign | ((rounded >> 20) - (uint32_t{127 - 7} << 3)));
}

// Four codes, the first in the lowest bits.
__device__ __forceinline__ uint32_t e4m3_codes(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return uint32_t(high) << 16 | low;
#else
  return uint32_t(e4m3_code(d)) << 24 | uint32_t(e4m3_code(c)) << 16 | uint32_t(e4m3_code(b)) << 8 | e4m3_code(a);
#endif
}

}  // namespace wick
