#include "wick/io/numbers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "wick/core/dtype.h"
#include "wick/core/row_formats.h"

namespace wick {
namespace {

float e5m2_to_f32(uint8_t bits) { return f16_to_f32(uint16_t(bits << 8)); }  // the upper half of an f16

template <float (*convert)(uint8_t)>
float from_table(uint8_t bits) {
  static const auto table = [] {
    std::array<float, 256> values{};
    for (size_t i = 0; i < values.size(); ++i) values[i] = convert(uint8_t(i));
    return values;
  }();
  return table[bits];
}

template <class T>
float plain(T value) {
  return float(value);
}

template <class T, float (*convert)(T)>
void read_all(const std::byte* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    to[i] = convert(value);
  }
}

// Floats first.
constexpr size_t kFloats = 6;
constexpr std::pair<std::string_view, ToF32> kNumbers[] = {
    {"F64", read_all<double, plain>},
    {"F32", read_all<float, plain>},
    {"F16", read_all<uint16_t, f16_to_f32>},
    {"BF16", read_all<uint16_t, bf16_to_f32>},
    {"F8_E4M3", read_all<uint8_t, e4m3_to_f32>},
    {"F8_E5M2", read_all<uint8_t, from_table<e5m2_to_f32>>},
    {"I64", read_all<int64_t, plain>},
    {"I32", read_all<int32_t, plain>},
    {"I16", read_all<int16_t, plain>},
    {"I8", read_all<int8_t, plain>},
    {"U64", read_all<uint64_t, plain>},
    {"U32", read_all<uint32_t, plain>},
    {"U16", read_all<uint16_t, plain>},
    {"U8", read_all<uint8_t, plain>},
    {"BOOL", read_all<uint8_t, plain>},
};

}  // namespace

ToF32 to_f32(std::string_view dtype_name) {
  for (const auto& [name, convert] : kNumbers)
    if (name == dtype_name) return convert;
  return nullptr;
}

bool is_float_type(std::string_view dtype_name) {
  return std::ranges::any_of(std::span(kNumbers).first(kFloats),
                             [&](const auto& row) { return row.first == dtype_name; });
}

}  // namespace wick
