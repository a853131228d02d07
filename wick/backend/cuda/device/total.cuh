// Sums in double precision, in a fixed order: over a block, and of what the blocks of a kernel left behind.
#pragma once

#include "wick/backend/cuda/cuda.h"

namespace wick {

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

// Thread 0 gets the sum. blockDim.x is a multiple of 32; once a kernel.
__device__ __forceinline__ double block_sum(double x) {
  __shared__ double partial[32];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  return warp_sum(threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0);
}

// y, of one element, = (sum of n numbers) / divisor. 0 of none.
void total_of(CudaBackend& cuda, View y, const double* partial, int64_t n, double divisor = 1);  // reduce.cu

}  // namespace wick
