// The instruction sets that our SIMD code is compiled for: AVX-512, AVX2, and a portable form for anything else.
// Include before any of Highway's headers.
#pragma once

#include <cstdint>

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)

namespace wick {

// The floats of the widest vector. Highway's own HWY_MAX_BYTES, read outside a target's code, is the portable form's.
inline constexpr int64_t kWidestVector = 16;

}  // namespace wick
