// Conversion of a file's numbers to f32, by safetensors' names for their types.
#pragma once

#include <cstddef>
#include <string_view>

namespace wick {

using ToF32 = void (*)(const std::byte* from, float* to, size_t count);

// Reads little-endian numbers of a type: floats of 8 to 64 bits ("F8_E4M3" is OCP's, without infinities; "F8_E5M2"),
// and integers. Null for any other type. Values too large for f32 become infinite.
ToF32 to_f32(std::string_view dtype_name);
// Whether to_f32() reads a type, and it is one of floats.
bool is_float_type(std::string_view dtype_name);

}  // namespace wick
