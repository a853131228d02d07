// Barriers in shared memory that count who arrives (8.0 on): a ring's stages wait for copies, and copies for stages. A
// barrier's phase ends when all have arrived and all bytes that they told are there; phases are odd and even in turn.
#pragma once

#include <cstdint>

#include "wick/backend/cuda/device/mma.cuh"

namespace wick {

__device__ __forceinline__ void arrivals_init(uint64_t* barrier, int count) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
#endif
}
// By the thread that did that, before the block meets.
__device__ __forceinline__ void arrivals_init_done() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void arrivals_add(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 800
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared_address(barrier))
               : "memory");
#endif
}
// This thread arrives once its copy_async() calls so far are there.
__device__ __forceinline__ void arrivals_add_copies(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}
// Until the phase of this parity has ended; at first the odd one has.
__device__ __forceinline__ void arrivals_wait(uint64_t* barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#elif __CUDA_ARCH__ >= 800
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#endif
}

// This thread arrives, and `bytes` to come belong to the phase: from global to shared memory, both at multiples of 16,
// and as many (9.0 on).
__device__ __forceinline__ void copy_bulk(void* to, const void* from, int bytes, uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.expect_tx.shared.b64 _, [%3], %2;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
#endif
}

// Barrier `id` among `threads` threads of the block.
__device__ __forceinline__ void threads_meet(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace wick
