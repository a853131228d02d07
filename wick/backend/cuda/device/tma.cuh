// Tensor copies of 9.0: TMA brings boxes of a matrix to shared memory and arrives at a barrier with their bytes.
// Compiled only for sm_90a, as wgmma is; elsewhere WICK_SM90A is not defined and callers leave their kernels empty.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "wick/backend/cuda/device/barriers.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WICK_SM90A 1
#endif

namespace wick {

#ifdef WICK_SM90A

// Ordinary writes to shared memory become visible to TMA and the tensor cores (the async proxy).
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void tma_prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box whose first element is (column, row), into shared memory of this block,
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}
// or of each block in `blocks`, a bit mask over the cluster.
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int row,
                                         uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "h"(blocks)
      : "memory");
}
// A box of a map with four dims, innermost first.
__device__ __forceinline__ void tma_load(void* to, const CUtensorMap& map, uint64_t* barrier, const int (&at)[4]) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
      : "memory");
}

#endif  // WICK_SM90A

}  // namespace wick
