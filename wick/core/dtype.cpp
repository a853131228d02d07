#include "wick/core/dtype.h"

#include <iterator>

#include "wick/core/error.h"
#include "wick/core/row_formats.h"

namespace wick {

namespace {

struct Facts {
  std::string_view name;
  BlockSize block;
};

// In the order of the enumeration.
constexpr Facts kFacts[] = {
    {"f32", {1, 4}},         {"bf16", {1, 2}},     {"f16", {1, 2}},      {"i32", {1, 4}},
    {"i64", {1, 8}},         {"u8", {1, 1}},       {"q8_0", {32, 34}},   {"q4_0", {32, 18}},
    {"q4_k", {256, 144}},    {"q5_k", {256, 176}}, {"q6_k", {256, 210}}, {"fp8", {1, 0}},
    {"fp8-block", {128, 0}}, {"int8", {1, 0}},     {"nf4", {64, 0}},     {"nf4-double", {64, 0}},
    {"fp8-product", {1, 0}},
};
static_assert(std::size(kFacts) == size_t(DType::fp8_product) + 1);

}  // namespace

BlockSize block_of(DType dtype) { return kFacts[size_t(dtype)].block; }
std::string_view name_of(DType dtype) { return kFacts[size_t(dtype)].name; }

size_t size_of(DType dtype) {
  check(!is_quantized(dtype),
        "{} is for the weights of linear layers and tables: another operation was asked to read it", name_of(dtype));
  return size_t(block_of(dtype).bytes);
}

int64_t bytes_of(DType dtype, int64_t elements) {
  const BlockSize block = block_of(dtype);
  check(!has_row_format(dtype) || elements == 0, "{} keeps whole rows: it has no {} elements", name_of(dtype),
        elements);
  check(elements % block.elements == 0, "{} keeps {} elements in a block: {} are not whole blocks", name_of(dtype),
        block.elements, elements);
  return elements / block.elements * block.bytes;
}

int64_t row_bytes(DType dtype, int64_t cols) {
  return has_row_format(dtype) ? row_layout(dtype, cols).bytes : bytes_of(dtype, cols);
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: the mantissa counts units of 2^-24
    const float magnitude = float(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the rounded count of 2^-24 in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return uint16_t(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace wick
