// A ring of tiles in shared memory between the warps that ask the copy engine for them and those that multiply them.
#pragma once

#include "wick/backend/cuda/device/hopper.cuh"

namespace wick {

#ifdef WICK_SM90A

// Addresses in shared memory; `full` and `empty` are `count` barriers each.
struct Ring {
  uint32_t first, full, empty;
  int count, bytes;
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ int offset() const { return stage * bytes; }
  __device__ __forceinline__ uint32_t tiles() const { return first + uint32_t(offset()); }
  __device__ __forceinline__ uint32_t full_barrier() const { return full + uint32_t(stage) * 8; }
  __device__ __forceinline__ void wait_full() const { barrier_wait(full_barrier(), phase); }
  __device__ __forceinline__ void wait_empty() const { barrier_wait(empty + uint32_t(stage) * 8, phase ^ 1); }
  __device__ __forceinline__ void release(int of, int block) const { barrier_arrive(empty + uint32_t(of) * 8, block); }
  __device__ __forceinline__ void advance(int steps = 1) {  // no more than there are stages
    stage += steps;
    if (stage >= count) {
      stage -= count;
      phase ^= 1;
    }
  }
};

#endif  // WICK_SM90A

}  // namespace wick
