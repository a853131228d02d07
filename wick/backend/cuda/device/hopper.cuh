// What 9.0 adds: the bulk tensor copy engine (TMA), and warpgroup matrix products (wgmma).
// Compiled only for sm_90a; elsewhere WICK_SM90A is not defined and callers leave their kernels empty.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "wick/backend/cuda/device/barriers.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WICK_SM90A 1
#endif

namespace wick {

#ifdef WICK_SM90A

// Ordinary writes to shared memory become visible to the copy engine and the tensor cores.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- the copy engine

// A box of a matrix into shared memory of each block in `blocks`, a bit mask; at (column, row) of its first element.
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int row,
                                         uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}
__device__ __forceinline__ void tma_prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

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
// After the wait for a product: nothing that reads its sums may move before it, or ptxas lets products wait for each
// other.
template <int kCount>
__device__ __forceinline__ void wgmma_arrived(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// An operand in shared memory as the copy engine lays it down: rows of 128 bytes or less, swizzled in groups of eight.
// K-major: a row is 64 elements along the reduction. Else a row is kRow elements of the other side (64, 32 or 16), 64
// rows make a chunk, and what follows on that side is the next chunk. Only the lower half of the descriptor depends on
// the address.
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

// The operand that begins where a tile of rows of 128 bytes does, and what a 16-element step of the reduction adds to
// it.
__device__ __forceinline__ uint64_t wgmma_operand(const void* tile, bool k_major) {
  const uint32_t address = shared_address(tile);
  return k_major ? WgmmaOperand<true>(address).at(0, 0) : WgmmaOperand<false>(address).at(0, 0);
}
__device__ constexpr uint64_t wgmma_step(bool k_major) {
  return k_major ? WgmmaOperand<true>::kStep : WgmmaOperand<false>::kStep;
}

// Four 8x8 matrices of 16-bit elements to shared memory; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void store_matrices(void* row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

#endif  // WICK_SM90A

}  // namespace wick
