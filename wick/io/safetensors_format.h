// The constants that the reader and the writer of safetensors share.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "wick/core/dtype.h"

namespace wick {

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // bytes
inline constexpr std::string_view kMetadataKey = "__metadata__";

struct FileDType {
  std::string_view name;
  unsigned bits;
  std::optional<DType> dtype;
};

// All types of the format, in the order of the reference implementation (safetensors/src/tensor.rs, `enum Dtype`),
// which writes the last first.
inline constexpr FileDType kFileDTypes[] = {
    {"BOOL", 8, {}},         {"F4", 4, {}},           {"F6_E2M3", 6, {}},        {"F6_E3M2", 6, {}},
    {"U8", 8, DType::u8},    {"I8", 8, {}},           {"F8_E5M2", 8, {}},        {"F8_E4M3", 8, {}},
    {"F8_E8M0", 8, {}},      {"F8_E4M3FNUZ", 8, {}},  {"F8_E5M2FNUZ", 8, {}},    {"I16", 16, {}},
    {"U16", 16, {}},         {"F16", 16, DType::f16}, {"BF16", 16, DType::bf16}, {"I32", 32, DType::i32},
    {"U32", 32, {}},         {"F32", 32, DType::f32}, {"C64", 64, {}},           {"F64", 64, {}},
    {"I64", 64, DType::i64}, {"U64", 64, {}},
};

}  // namespace wick
