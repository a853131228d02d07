// What the numbers of a file mean, by the names that safetensors has for their types.
#pragma once

#include <cstddef>
#include <string_view>

namespace wick {

using ToF32 = void (*)(const std::byte* from, float* to, size_t count);

// Reads little-endian numbers of a type: floats of 8 to 64 bits ("F8_E4M3" is OCP's, without infinities; "F8_E5M2"),
// and integers. Null for any other type. What is too large for f32 becomes infinite.
ToF32 to_f32(std::string_view dtype_name);

}  // namespace wick
