// Warp-wide matrix products (mma.sync, ldmatrix) and asynchronous copies into shared memory, from 8.0 on.
// Older devices compile them to nothing and must not call them.
#pragma once

#include <cstdint>

#include "wick/backend/cuda/device/numbers.cuh"

namespace wick {

// Two neighbours of an operand's or result's fragment, rounded.
template <class T>
__device__ __forceinline__ uint32_t pack(float a, float b) {
  if constexpr (std::is_same_v<T, bf16>) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&both);
  } else {
    const __half2 both = __floats2half2_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&both);
  }
}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// 16 bytes from global to shared memory, both 16-byte aligned; zeros if not valid, and then nothing is read.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool valid) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
#endif
}
__device__ __forceinline__ void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kPending>  // groups that may still be under way
__device__ __forceinline__ void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], const void* row) {
#if __CUDA_ARCH__ >= 800
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
#endif
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&out)[4], const void* row) {
#if __CUDA_ARCH__ >= 800
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
#endif
}

// Operands of mma from a tile in shared memory with `ld` elements from row to row. `a` is 16 (m) x 16 (k); `b` is 16
// (k) x 16 (n): registers 0, 1 for its first eight columns, 2, 3 for the last eight.
template <class T>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const T* tile, int ld, int lane) {  // rows m, columns k
  load_matrices(a, tile + (lane % 16) * ld + lane / 16 * 8);
}
template <class T>
__device__ __forceinline__ void load_a_transposed(uint32_t (&a)[4], const T* tile, int ld, int lane) {  // rows k
  load_matrices_transposed(a, tile + (lane % 8 + lane / 16 * 8) * ld + lane / 8 % 2 * 8);
}
template <class T>
__device__ __forceinline__ void load_b(uint32_t (&b)[4], const T* tile, int ld, int lane) {  // rows k, columns n
  load_matrices_transposed(b, tile + (lane % 16) * ld + lane / 16 * 8);
}
template <class T>
__device__ __forceinline__ void load_b_transposed(uint32_t (&b)[4], const T* tile, int ld, int lane) {  // rows n
  load_matrices(b, tile + (lane % 8 + lane / 16 * 8) * ld + lane / 8 % 2 * 8);
}

// d [16, 8] = a [16, 16] b [16, 8] + c [16, 8] in f32. Lane i holds d(i / 4, 2 (i % 4) + {0, 1}) and the same eight
// rows below.
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                    const float (&c)[4]) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#endif
}
// The same with a [16, 8] and b [8, 8] in bf16: lane i has a(i / 4 + {0, 8}, 2 (i % 4) + {0, 1}) and b(2 (i % 4) + {0,
// 1}, i / 4).
__device__ __forceinline__ void mma_of_eight(float (&d)[4], const uint32_t (&a)[2], uint32_t b, const float (&c)[4]) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#endif
}
// d += a b
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma<T>(d, a, b0, b1, d);
}

}  // namespace wick
