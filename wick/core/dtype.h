// Element types, and conversions of the 16-bit floats (round to nearest even, as IEEE 754 asks).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace wick {

enum class DType : uint8_t { f32, bf16, f16, i32, i64, u8 };

size_t size_of(DType dtype);            // bytes an element
std::string_view name_of(DType dtype);  // "f32", "bf16", ...
constexpr bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

inline float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);  // NaN stays NaN
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);

}  // namespace wick
