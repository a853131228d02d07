// wgmma on fragments [N / 8][4], as mma.cuh has them: sums that start at zero, and operand a from registers.
#pragma once

#include "wick/backend/cuda/device/hopper.cuh"

namespace wick {

#ifdef WICK_SM90A

// The instruction names each register, so its text cannot come from a template.
#define WICK_SUMS_8(j)                                                                                                 \
  "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3]), "+f"(d[j + 1][0]), "+f"(d[j + 1][1]), "+f"(d[j + 1][2]), \
      "+f"(d[j + 1][3])
#define WICK_SUMS_32(j) WICK_SUMS_8(j), WICK_SUMS_8(j + 2), WICK_SUMS_8(j + 4), WICK_SUMS_8(j + 6)
#define WICK_NAMES_32                                                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define WICK_NAMES_48 WICK_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WICK_NAMES_64                \
  WICK_NAMES_48                      \
  ", %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// From two tiles, both K-major; %32 or %64 and on: a, b, whether to add.
#define WICK_WGMMA_ROWS(type, n, names, sums, a_at, b_at, add_at)                                               \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" add_at                                                  \
               ", 0;\n"                                                                                         \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names "}, %" a_at ", %" b_at \
               ", add, 1, 1, 0, 0;\n}"                                                                          \
               : sums                                                                                           \
               : "l"(a), "l"(b), "n"(int(kAdd)))
// From packed fragments and a tile that is not K-major.
#define WICK_WGMMA_FRAGMENTS(type, n, names, sums, a0, a1, a2, a3, b_at)                                              \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names "}, {%" a0 ", %" a1 ", %" a2 \
               ", %" a3 "}, %" b_at ", 1, 1, 1, 1;"                                                                   \
               : sums                                                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define WICK_SUMS_48 WICK_SUMS_32(0), WICK_SUMS_8(8), WICK_SUMS_8(10)
#define WICK_SUMS_64 WICK_SUMS_32(0), WICK_SUMS_32(8)

// d [64, 8 kFragments] = a b^T, or += where kAdd.
template <class T, bool kAdd, int kFragments>
__device__ __forceinline__ void wgmma_rows(float (&d)[kFragments][4], uint64_t a, uint64_t b) {
  constexpr bool kBf16 = std::is_same_v<T, bf16>;
  if constexpr (kFragments == 8 && kBf16)
    WICK_WGMMA_ROWS("bf16", "64", WICK_NAMES_32, WICK_SUMS_32(0), "32", "33", "34");
  if constexpr (kFragments == 8 && !kBf16)
    WICK_WGMMA_ROWS("f16", "64", WICK_NAMES_32, WICK_SUMS_32(0), "32", "33", "34");
  if constexpr (kFragments == 12 && kBf16) WICK_WGMMA_ROWS("bf16", "96", WICK_NAMES_48, WICK_SUMS_48, "48", "49", "50");
  if constexpr (kFragments == 12 && !kBf16) WICK_WGMMA_ROWS("f16", "96", WICK_NAMES_48, WICK_SUMS_48, "48", "49", "50");
  if constexpr (kFragments == 16 && kBf16)
    WICK_WGMMA_ROWS("bf16", "128", WICK_NAMES_64, WICK_SUMS_64, "64", "65", "66");
  if constexpr (kFragments == 16 && !kBf16)
    WICK_WGMMA_ROWS("f16", "128", WICK_NAMES_64, WICK_SUMS_64, "64", "65", "66");
}

// d [64, 8 kFragments] += a b.
template <class T, int kFragments>
__device__ __forceinline__ void wgmma_fragments(float (&d)[kFragments][4], const uint32_t (&a)[4], uint64_t b) {
  constexpr bool kBf16 = std::is_same_v<T, bf16>;
  if constexpr (kFragments == 8 && kBf16)
    WICK_WGMMA_FRAGMENTS("bf16", "64", WICK_NAMES_32, WICK_SUMS_32(0), "32", "33", "34", "35", "36");
  if constexpr (kFragments == 8 && !kBf16)
    WICK_WGMMA_FRAGMENTS("f16", "64", WICK_NAMES_32, WICK_SUMS_32(0), "32", "33", "34", "35", "36");
  if constexpr (kFragments == 16 && kBf16)
    WICK_WGMMA_FRAGMENTS("bf16", "128", WICK_NAMES_64, WICK_SUMS_64, "64", "65", "66", "67", "68");
  if constexpr (kFragments == 16 && !kBf16)
    WICK_WGMMA_FRAGMENTS("f16", "128", WICK_NAMES_64, WICK_SUMS_64, "64", "65", "66", "67", "68");
}

#undef WICK_SUMS_8
#undef WICK_SUMS_32
#undef WICK_SUMS_48
#undef WICK_SUMS_64
#undef WICK_NAMES_32
#undef WICK_NAMES_48
#undef WICK_NAMES_64
#undef WICK_WGMMA_ROWS
#undef WICK_WGMMA_FRAGMENTS

template <int kFragments>
__device__ __forceinline__ void wgmma_arrived(float (&d)[kFragments][4]) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[j][i])::"memory");
}

#endif  // WICK_SM90A

}  // namespace wick
