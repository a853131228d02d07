// Shared by the attention kernels of 9.0. One warp issues the TMA loads of the other side's tiles; two or three
// warpgroups hold 64 tokens of their own side each and multiply. Scores come out of one product as the next one takes
// them, in registers, so that nothing but the inputs passes through shared memory.
#pragma once

#include "wick/backend/cuda/attention/fragments.cuh"
#include "wick/backend/cuda/device/ring.cuh"
#include "wick/backend/cuda/device/wgmma.cuh"
#include "wick/backend/cuda/runtime/tensor_map.h"

namespace wick {

constexpr int kConsumers = 2;  // backward, and forward with ranges

#ifdef WICK_SM90A

// TMA's tiles lie at multiples of 1024 bytes. By a sum, so that the compiler still sees shared memory.
__device__ __forceinline__ char* first_tile(char* memory) {
  return memory + (1024 - shared_address(memory) % 1024) % 1024;
}

template <int kCount>
__device__ __forceinline__ void init_ring(uint64_t (&full)[kCount], uint64_t (&empty)[kCount], int fillers,
                                          int readers) {
  for (int i = 0; i < kCount; ++i) {
    barrier_init(&full[i], fillers);
    barrier_init(&empty[i], readers);
  }
}

// kTokens tokens from `first` on, 64 features after 64.
template <int kD, int kTokens, class T>
__device__ __forceinline__ void load_tokens(T* to, const CUtensorMap& map, uint64_t* full, int first, int head,
                                            int batch) {
#pragma unroll
  for (int feature = 0; feature < kD; feature += 64)
#pragma unroll
    for (int token = 0; token < kTokens; token += kHeadsBox)
      tma_load(to + feature * kTokens + token * 64, map, full, {feature, first + token, head, batch});
}

// An operand that is the same in all lanes, from a reduction, which leaves it where products read it. Else each step's
// is moved there, once the step before has read its own.
__device__ __forceinline__ uint64_t uniform(uint64_t operand) {
  return operand >> 32 << 32 | __reduce_or_sync(0xffffffffu, uint32_t(operand));
}

// s [64, 8 kFragments] = a b^T over kD features; from one 64 features of each to the next `a_chunk` and `b_chunk`
// bytes.
template <class T, int kD, int kFragments>
__device__ __forceinline__ void multiply_rows(float (&s)[kFragments][4], uint64_t a, int a_chunk, uint64_t b,
                                              int b_chunk) {
  wgmma<T, false, 8 * kFragments, false, false>(s[0], a, b);
#pragma unroll
  for (int k = 1; k < kD / 16; ++k)
    wgmma<T, false, 8 * kFragments>(s[0], a + uint64_t(k / 4 * (a_chunk >> 4) + k % 4 * 2),
                                    b + uint64_t(k / 4 * (b_chunk >> 4) + k % 4 * 2));
  wgmma_commit();
}
// Fragments as operand a.
template <class T, int kFragments>
__device__ __forceinline__ void pack_rows(uint32_t (&packed)[kFragments / 2][4], const float (&x)[kFragments][4]) {
#pragma unroll
  for (int n = 0; n < kFragments / 2; ++n) pack<T>(packed[n], x[2 * n], x[2 * n + 1]);
}
// sum [64, kD] += weights b, where b holds its tokens 64 after 64.
template <class T, int kSums, int kSteps>
__device__ __forceinline__ void add_product(float (&sum)[kSums][4], const uint32_t (&weights)[kSteps][4], uint64_t b) {
  constexpr uint64_t kBlock = 64 * 8 * kSums * sizeof(T) >> 4;
  wgmma_fence();
#pragma unroll
  for (int n = 0; n < kSteps; ++n)
    wgmma<T, true, 8 * kSums>(sum[0], weights[n],
                              b + uint64_t(n / 4) * kBlock + uint64_t(n % 4) * WgmmaOperand<false>::kStep);
  wgmma_commit();
}
template <class T, int kSums, int kFragments>
__device__ __forceinline__ void add_product(float (&sum)[kSums][4], const float (&weights)[kFragments][4], uint64_t b) {
  uint32_t packed[kFragments / 2][4];
  pack_rows<T>(packed, weights);
  add_product<T>(sum, packed, b);
}

// Zeroes the tile behind row `first`, with its tokens 64 after 64, by both of two warpgroups, or by the only one that
// needs it: unseen keys and values may hold anything, and zero times NaN would show. (Their scores are masked in any
// case.)
template <int kD, int kN, class T>
__device__ __forceinline__ void clear_rows(T* tile, int first, bool both = true) {
  const int threads = both ? 128 * kConsumers : 128;
  for (int i = int(threadIdx.x) % threads; i < (kN - first) * (kD / 8); i += threads) {
    const int row = first + i / (kD / 8), piece = i % (kD / 8);
    *reinterpret_cast<uint4*>(tile + row / 64 * 64 * kD + (piece / 8 * 64 + row % 64) * 64 + piece % 8 * 8) = {};
  }
  fence_async();
  named_barrier(both ? 1 + kConsumers : int(threadIdx.x) / 128, threads);
}

// The parts of a persistent grid's block, back and forth over the list, so that short ones follow long ones.
__device__ __forceinline__ int part_at(int round) {
  const int blocks = int(gridDim.x), block = int(blockIdx.x);
  return round * blocks + (round % 2 ? blocks - 1 - block : block);
}

#endif  // WICK_SM90A

}  // namespace wick
