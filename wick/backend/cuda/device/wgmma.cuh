// wgmma with f32 accumulators: d [64, N] += a [64, 16] b [16, N], by the four warps of a warpgroup. Warp w holds rows
// 16 w to 16 w + 15 of d as mma's accumulators (mma.cuh), eight columns after eight. `b` is a descriptor of shared
// memory, `a` too, or registers: mma's operand, which 16 columns of accumulators are once they are packed.
#pragma once

#include "wick/backend/cuda/device/tma.cuh"

namespace wick {

#ifdef WICK_SM90A

// ---- warpgroups

template <int kRegisters>
__device__ __forceinline__ void registers_grow() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void registers_shrink() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// After the wait for a product: nothing that reads its sums may move before it, or ptxas makes products wait for each
// other.
template <int kCount>
__device__ __forceinline__ void wgmma_arrived(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kFragments>
__device__ __forceinline__ void wgmma_arrived(float (&d)[kFragments][4]) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j) wgmma_arrived(d[j]);
}

// ---- operands

// The descriptor of an operand as TMA lays it down: rows of 128 bytes or less, swizzled in groups of eight. K-major: a
// row is 64 elements along the reduction. Else a row is kRow elements of the other side (64, 32 or 16), 64 rows make a
// chunk, and the next chunk continues that side. Only the lower half of the descriptor depends on the address.
template <bool kKMajor, int kRow = 64>
struct WgmmaOperand {
  static constexpr uint32_t kSwizzle = kRow == 64 ? 1 : kRow == 32 ? 2 : 3, kGroup = 8 * kRow * 2 >> 4;
  static constexpr uint32_t kLeading = kKMajor ? 1 : 64 * kRow * 2 >> 4, kStep = kKMajor ? 32 >> 4 : 2 * kGroup;
  static_assert(!kKMajor || kRow == 64);
  uint32_t low;

  // From this block's shared memory on, without the block's rank in its cluster.
  __device__ __forceinline__ explicit WgmmaOperand(uint32_t address) : low((address & 0x3ffff) >> 4 | kLeading << 16) {}
  // `bytes` further, and k 16-element steps of the reduction.
  __device__ __forceinline__ uint64_t at(int bytes, int k) const {
    return uint64_t{kGroup | kSwizzle << 30} << 32 | (low + uint32_t(bytes >> 4) + uint32_t(k) * kStep);
  }
};

// The operand that begins where a tile of rows of 128 bytes does. A 16-element step of the reduction adds kStep to it.
template <bool kKMajor>
__device__ __forceinline__ uint64_t wgmma_operand(const void* tile) {
  return WgmmaOperand<kKMajor>(shared_address(tile)).at(0, 0);
}

// ---- products

// The instruction names each register, so its text cannot come from a template. Names and operands by eights:
#define WICK_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WICK_NAMES_16 WICK_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WICK_NAMES_24 WICK_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WICK_NAMES_32 WICK_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WICK_NAMES_40 WICK_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WICK_NAMES_48 WICK_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WICK_NAMES_56 WICK_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WICK_NAMES_64 WICK_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WICK_NAMES_72 WICK_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define WICK_NAMES_80 WICK_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define WICK_NAMES_88 WICK_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define WICK_NAMES_96 WICK_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define WICK_NAMES_104 WICK_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define WICK_NAMES_112 WICK_NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define WICK_NAMES_120 WICK_NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define WICK_NAMES_128 WICK_NAMES_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define WICK_EIGHT(i)                                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define WICK_SUMS_8 WICK_EIGHT(0)
#define WICK_SUMS_16 WICK_SUMS_8, WICK_EIGHT(8)
#define WICK_SUMS_24 WICK_SUMS_16, WICK_EIGHT(16)
#define WICK_SUMS_32 WICK_SUMS_24, WICK_EIGHT(24)
#define WICK_SUMS_40 WICK_SUMS_32, WICK_EIGHT(32)
#define WICK_SUMS_48 WICK_SUMS_40, WICK_EIGHT(40)
#define WICK_SUMS_56 WICK_SUMS_48, WICK_EIGHT(48)
#define WICK_SUMS_64 WICK_SUMS_56, WICK_EIGHT(56)
#define WICK_SUMS_72 WICK_SUMS_64, WICK_EIGHT(64)
#define WICK_SUMS_80 WICK_SUMS_72, WICK_EIGHT(72)
#define WICK_SUMS_88 WICK_SUMS_80, WICK_EIGHT(80)
#define WICK_SUMS_96 WICK_SUMS_88, WICK_EIGHT(88)
#define WICK_SUMS_104 WICK_SUMS_96, WICK_EIGHT(96)
#define WICK_SUMS_112 WICK_SUMS_104, WICK_EIGHT(104)
#define WICK_SUMS_120 WICK_SUMS_112, WICK_EIGHT(112)
#define WICK_SUMS_128 WICK_SUMS_120, WICK_EIGHT(120)
// n: N; r: registers of a thread, half of it; a, b, add, ta, tb: the numbers of the operands that follow them.
#define WICK_WGMMA(type, n, r, a_at, b_at, add_at, ta_at, tb_at)                                   \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" WICK_NAMES_##r \
               "}, %" #a_at ", %" #b_at ", %" #add_at ", 1, 1, %" #ta_at ", %" #tb_at ";"          \
               : WICK_SUMS_##r                                                                     \
               : "l"(a), "l"(b), "n"(int(kAdd)), "n"(int(kTransposedA)), "n"(int(kTransposed)))
#define WICK_WGMMA_OF(n, r, ...)                                                           \
  if constexpr (kN == n && std::is_same_v<T, bf16>) WICK_WGMMA("bf16", n, r, __VA_ARGS__); \
  if constexpr (kN == n && std::is_same_v<T, f16>) WICK_WGMMA("f16", n, r, __VA_ARGS__)

// The same with `a` in four registers, whose numbers are a0 to a3.
#define WICK_WGMMA_REGISTERS(type, n, r, a0, a1, a2, a3, b_at, t_at)                               \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" WICK_NAMES_##r \
               "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", 1, 1, 1, %" #t_at ";"     \
               : WICK_SUMS_##r                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(kTransposed)))
#define WICK_WGMMA_REGISTERS_OF(n, r, ...)                                                           \
  if constexpr (kN == n && std::is_same_v<T, bf16>) WICK_WGMMA_REGISTERS("bf16", n, r, __VA_ARGS__); \
  if constexpr (kN == n && std::is_same_v<T, f16>) WICK_WGMMA_REGISTERS("f16", n, r, __VA_ARGS__)

// kTransposed: b is not K-major; kTransposedA: nor is a. Without kAdd the sums start at zero. d: kN / 2 accumulators of
// this thread.
template <class T, bool kTransposed, int kN, bool kTransposedA = false, bool kAdd = true>
__device__ __forceinline__ void wgmma(float* d, uint64_t a, uint64_t b) {
  WICK_WGMMA_OF(16, 8, 8, 9, 10, 11, 12);
  WICK_WGMMA_OF(32, 16, 16, 17, 18, 19, 20);
  WICK_WGMMA_OF(64, 32, 32, 33, 34, 35, 36);
  WICK_WGMMA_OF(80, 40, 40, 41, 42, 43, 44);
  WICK_WGMMA_OF(96, 48, 48, 49, 50, 51, 52);
  WICK_WGMMA_OF(112, 56, 56, 57, 58, 59, 60);
  WICK_WGMMA_OF(128, 64, 64, 65, 66, 67, 68);
  WICK_WGMMA_OF(144, 72, 72, 73, 74, 75, 76);
  WICK_WGMMA_OF(160, 80, 80, 81, 82, 83, 84);
  WICK_WGMMA_OF(176, 88, 88, 89, 90, 91, 92);
  WICK_WGMMA_OF(192, 96, 96, 97, 98, 99, 100);
  WICK_WGMMA_OF(208, 104, 104, 105, 106, 107, 108);
  WICK_WGMMA_OF(224, 112, 112, 113, 114, 115, 116);
  WICK_WGMMA_OF(256, 128, 128, 129, 130, 131, 132);
}
template <class T, bool kTransposed, int kN>
__device__ __forceinline__ void wgmma(float* d, const uint32_t (&a)[4], uint64_t b) {
  WICK_WGMMA_REGISTERS_OF(64, 32, 32, 33, 34, 35, 36, 37);
  WICK_WGMMA_REGISTERS_OF(96, 48, 48, 49, 50, 51, 52, 53);
  WICK_WGMMA_REGISTERS_OF(128, 64, 64, 65, 66, 67, 68, 69);
  WICK_WGMMA_REGISTERS_OF(160, 80, 80, 81, 82, 83, 84, 85);
  WICK_WGMMA_REGISTERS_OF(192, 96, 96, 97, 98, 99, 100, 101);
}

#endif  // WICK_SM90A

}  // namespace wick
