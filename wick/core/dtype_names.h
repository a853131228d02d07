// Names of element types as users and other programs write them.
#pragma once

#include <string_view>

namespace wick {

// The name that Wick gives (name_of, core/dtype.h) to the type of that name in other programs: "f16" for float16, fp16
// and half, "bf16" for bfloat16, "f32" for float32, fp32 and float. Any other text is returned as it is.
std::string_view own_dtype_name(std::string_view name);

}  // namespace wick
