// Sums and maxima over a warp and over a block, in a fixed order.
#pragma once

#include <cmath>

namespace wick {

struct Sum {
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
  static constexpr float kNeutral = 0;
};
struct Max {
  static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
  static constexpr float kNeutral = -INFINITY;
};

// Of magnitudes: NaN if there is one.
struct MaxOrNan {
  static __device__ __forceinline__ float of(float a, float b) { return a > b || isnan(a) ? a : b; }
  static constexpr float kNeutral = 0;
};

// Every lane gets the result.
template <class Op>
__device__ __forceinline__ float warp_reduce(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}

// Every thread gets the result. blockDim.x is a multiple of 32; all threads call it. N values at once.
template <class Op, int N>
__device__ __forceinline__ void block_reduce(float (&x)[N]) {
  __shared__ float partial[N][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int n = 0; n < N; ++n) x[n] = warp_reduce<Op>(x[n]);
  if (warps == 1) return;
  __syncthreads();  // the last call's readers of `partial`
  if (lane == 0)
#pragma unroll
    for (int n = 0; n < N; ++n) partial[n][warp] = x[n];
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) x[n] = warp_reduce<Op>(lane < warps ? partial[n][lane] : Op::kNeutral);
}

template <class Op>
__device__ __forceinline__ float block_reduce(float x) {
  float one[1] = {x};
  block_reduce<Op>(one);
  return one[0];
}

// Sums in double precision; every lane gets the result.
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

__device__ __forceinline__ void add(float4& total, const float4& x) {
  total.x += x.x;
  total.y += x.y;
  total.z += x.z;
  total.w += x.w;
}

}  // namespace wick
