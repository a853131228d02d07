// Element types, and conversions of the 16-bit floats (round to nearest even, as IEEE 754 asks).
//
// Quantised types hold weights of frozen matrices. The q types stand for blocks of a row instead of elements, in GGUF's
// layouts (core/blocks.h): a block's elements share a scale. Behind them are types whose rows end with the scales of
// all their elements (core/row_formats.h). Strides still count elements, rows are whole blocks, and a request by
// element (size_of, a window that starts inside a block, or inside a row) is an Error.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace wick {

enum class DType : uint8_t {
  f32,
  bf16,
  f16,
  i32,
  i64,
  u8,
  q8_0,
  q4_0,
  q4_k,
  q5_k,
  q6_k,
  fp8,
  fp8_block,
  int8,
  nf4,
  nf4_double,
  fp8_product
};

size_t size_of(DType dtype);            // bytes per element; throws Error for blocks, which have no such size
std::string_view name_of(DType dtype);  // "f32", "bf16", ...
constexpr bool is_block(DType dtype) { return dtype >= DType::q8_0 && dtype <= DType::q6_k; }
constexpr bool has_row_format(DType dtype) { return dtype >= DType::fp8; }
constexpr bool is_quantized(DType dtype) { return is_block(dtype) || has_row_format(dtype); }

struct BlockSize {
  int64_t elements, bytes;  // row formats have no bytes of a block
};
BlockSize block_of(DType dtype);                  // one element where there are no blocks
int64_t bytes_of(DType dtype, int64_t elements);  // throws Error unless they are whole blocks, and for row formats
int64_t row_bytes(DType dtype, int64_t cols);     // of a row, whatever the type
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
