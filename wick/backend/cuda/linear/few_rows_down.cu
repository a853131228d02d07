// s = x down^T of a LoRA for a few tokens: a block makes one column of s. Most of its time is one way to memory and
// back, in which the blocks of the linear behind it already ask for the weight.
#include <algorithm>

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/numbers.cuh"
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/linear/few_rows.h"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kThreads = 128, kMostTokens = 8;
constexpr int kAtOnce = 4;  // packs of a thread on their way together

template <class T>
using Eight = Pack<T, 8>;

// A thread's packs of a row from `first` on, every kThreads-th; zeros beyond the row.
template <class T>
__device__ __forceinline__ void load(Eight<T> (&packs)[kAtOnce], const T* row, int first, int count) {
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int at = first + i * kThreads;
    packs[i] = at < count ? reinterpret_cast<const Eight<T>*>(row)[at] : Eight<T>{};
  }
}

// If down is constant, it is asked for before the kernel that makes x has ended.
template <class T, int kTokens>
__global__ void __launch_bounds__(kThreads, 8)
    few_rows_down_kernel(T* s, int64_t s_row, const T* x, int64_t x_row, const T* down, int64_t down_row, int packs,
                         int all_tokens, bool constant) {
  down += blockIdx.x * down_row;
  const int first_token = int(blockIdx.y) * kTokens, tokens = min(kTokens, all_tokens - first_token);
  if (!constant) wait_for_previous();
  launch_dependents();
  Eight<T> factors[kAtOnce];
  load(factors, down, int(threadIdx.x), packs);
  if (constant) wait_for_previous();
  float sum[kTokens] = {};
  for (int first = int(threadIdx.x); first < packs; first += kAtOnce * kThreads) {
    if (first != int(threadIdx.x)) load(factors, down, first, packs);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t >= tokens) continue;
      Eight<T> values[kAtOnce];
      load(values, x + (first_token + t) * x_row, first, packs);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[t] = fmaf(to_float(values[i].value[j]), to_float(factors[i].value[j]), sum[t]);
    }
  }
  block_reduce<Sum>(sum);
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
    if (t < tokens) s[(first_token + t) * s_row + blockIdx.x] = from_float<T>(sum[t]);
}

template <class T, int kTokens>
void launch_down(CudaBackend& cuda, const DeviceMatrix& s, const DeviceMatrix& x, const View& down) {
  const dim3 grid(unsigned(s.cols), unsigned(ceil_div(x.rows, kTokens)));
  launch("s of a few tokens", cuda.stream(), overlapped(cuda, grid, dim3(kThreads)), few_rows_down_kernel<T, kTokens>,
         static_cast<T*>(s.data), s.ld, static_cast<const T*>(x.data), x.ld, down.as<const T>(), down.stride[0],
         int(x.cols / 8), int(x.rows), down.constant);
}

}  // namespace

void few_rows_down(CudaBackend& cuda, const DeviceMatrix& s, const DeviceMatrix& x, const View& down) {
  dispatch_16bit(x.dtype, [&]<class T>(Type<T>) {
    x.rows == 1 ? launch_down<T, 1>(cuda, s, x, down) : launch_down<T, kMostTokens>(cuda, s, x, down);
  });
}

}  // namespace wick
