// Barriers (mbarrier) in shared memory that count arrivals and bytes (8.0 on; bytes from 9.0 on). A phase ends when all
// have arrived and all announced bytes are there; phases are odd and even in turn.
#pragma once

#include <cstdint>

#include "wick/backend/cuda/device/mma.cuh"

namespace wick {

struct Barrier {  // by pointer or by address
  uint32_t address;

  __device__ __forceinline__ Barrier(uint64_t* barrier) : address(shared_address(barrier)) {}
  __device__ __forceinline__ Barrier(uint32_t barrier) : address(barrier) {}
};

__device__ __forceinline__ void barrier_init(Barrier barrier, int arrivals) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier.address), "r"(arrivals) : "memory");
#endif
}
// Called by the thread that did that, before the block meets, or the cluster if other blocks' bytes are to come.
__device__ __forceinline__ void barrier_init_done() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive(Barrier barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier.address) : "memory");
#elif __CUDA_ARCH__ >= 800
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier.address) : "memory");
#endif
}
// In block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive(Barrier barrier, int rank) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier.address),
      "r"(rank)
      : "memory");
#endif
}
// This thread arrives once its copy_async() calls so far are there.
__device__ __forceinline__ void barrier_arrive_after_copies(Barrier barrier) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier.address) : "memory");
#endif
}
// This thread arrives, and `bytes` to come belong to the phase; they may come before.
__device__ __forceinline__ void barrier_expect(Barrier barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier.address), "r"(bytes) : "memory");
#endif
}
// Until the phase of this parity has ended; at first the odd one has.
__device__ __forceinline__ void barrier_wait(Barrier barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n}" ::"r"(barrier.address),
      "r"(parity)
      : "memory");
#elif __CUDA_ARCH__ >= 800
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n}" ::"r"(barrier.address),
      "r"(parity)
      : "memory");
#endif
}
// The same where other blocks of the cluster wrote the data.
__device__ __forceinline__ void barrier_wait_cluster(Barrier barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n}" ::"r"(barrier.address),
      "r"(parity)
      : "memory");
#endif
}

// This thread arrives, and the bytes belong to the phase: from global to shared memory, both at multiples of 16, and as
// many (9.0 on).
__device__ __forceinline__ void copy_bulk(void* to, const void* from, int bytes, Barrier barrier) {
#if __CUDA_ARCH__ >= 900
  barrier_expect(barrier, bytes);
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(barrier.address)
               : "memory");
#endif
}

// Barrier `id` among `threads` threads of the block.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// The same without waiting: lets those go on that wait for this many.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace wick
