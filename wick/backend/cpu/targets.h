// The instruction sets that our SIMD code is compiled for: AVX-512, AVX2, and a portable form for anything else.
// Include before any of Highway's headers.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
