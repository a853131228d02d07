#include "wick/core/dtype_names.h"

#include <utility>

#include "wick/core/dtype.h"

namespace wick {

std::string_view own_dtype_name(std::string_view name) {
  static constexpr std::pair<std::string_view, DType> kOthers[] = {
      {"float32", DType::f32}, {"fp32", DType::f32}, {"float", DType::f32},    {"float16", DType::f16},
      {"fp16", DType::f16},    {"half", DType::f16}, {"bfloat16", DType::bf16}};
  for (const auto& [other, dtype] : kOthers)
    if (name == other) return name_of(dtype);
  return name;
}

}  // namespace wick
