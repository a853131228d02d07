// A ring of stages in shared memory between those who fill it and those who multiply it. Each stage has a barrier that
// says it is full and one that says it is empty (barriers.cuh).
#pragma once

#include "wick/backend/cuda/device/barriers.cuh"

namespace wick {

// The stage that comes next, and whether the ring went round an even or odd number of times.
template <int kCount>
struct RingPlace {
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kCount) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// The same with a count that the launch knows. Addresses are in shared memory; `full` and `empty` are `count` barriers
// each.
struct Ring {
  uint32_t first, full, empty;
  int count, bytes;
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void init(int fillers, int readers) const {
    for (int i = 0; i < count; ++i) {
      barrier_init(full + 8 * i, fillers);
      barrier_init(empty + 8 * i, readers);
    }
  }
  __device__ __forceinline__ int offset() const { return stage * bytes; }
  __device__ __forceinline__ uint32_t tiles() const { return first + uint32_t(offset()); }
  __device__ __forceinline__ uint32_t full_barrier() const { return full + uint32_t(stage) * 8; }
  __device__ __forceinline__ uint32_t empty_barrier() const { return empty + uint32_t(stage) * 8; }
  __device__ __forceinline__ void wait_full() const { barrier_wait(full_barrier(), phase); }
  __device__ __forceinline__ void wait_empty() const { barrier_wait(empty_barrier(), phase ^ 1); }
  __device__ __forceinline__ void release(int of, int block) const { barrier_arrive(empty + uint32_t(of) * 8, block); }
  __device__ __forceinline__ void advance(int steps = 1) {  // no more than there are stages
    stage += steps;
    if (stage >= count) {
      stage -= count;
      phase ^= 1;
    }
  }
};

}  // namespace wick
