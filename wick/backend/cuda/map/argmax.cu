// The largest of each row and where it is, by a block a row: one 64-bit maximum of values that are ordered as integers,
// with their columns in the lower half.
#include "wick/backend/cuda/map/rows.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kThreads = 1024;

// Larger floats are larger numbers, NaN the largest of all; among equals the lower column wins.
__device__ __forceinline__ uint64_t rank_of(float x, int column) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 is 0
  const uint32_t order = x != x ? 0xffffffffu : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
  return uint64_t(order) << 32 | (0xffffffffu - uint32_t(column));
}

__device__ __forceinline__ uint64_t warp_max(uint64_t x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) argmax_rows(int64_t* ids, int64_t ids_step, float* largest,
                                                        int64_t largest_step, const RowsOf<const T> x, int width) {
  __shared__ uint64_t of_warp[kThreads / 32];
  const T* const row = x[blockIdx.x];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  uint64_t best = 0;
#pragma unroll 4
  for (int i = int(threadIdx.x) * N; i < width; i += kThreads * N) {
    const auto pack = load_pack<N>(row + i);
#pragma unroll
    for (int j = 0; j < N; ++j) best = max(best, rank_of(element(pack, j), i + j));
  }
  best = warp_max(best);
  if (lane == 0) of_warp[warp] = best;
  __syncthreads();
  if (warp > 0) return;
  best = warp_max(of_warp[lane]);
  if (lane > 0) return;
  const uint32_t column = 0xffffffffu - uint32_t(best);
  ids[blockIdx.x * ids_step] = column;
  if (largest) largest[blockIdx.x * largest_step] = to_float(row[column]);
}

}  // namespace

void CudaBackend::argmax(View ids, View largest, View x) {
  if (x.numel() == 0) return;
  const RowInput input(*this, x, x.dtype);
  const int64_t rows = x.dim(0), width = x.dim(1);
  dispatch_packs(x.dtype, input.packs(), [&]<class T>(Type<T>, auto pack) {
    launch("argmax", stream_, {unsigned(rows), kThreads}, argmax_rows<T, pack.value>, ids.as<int64_t>(), ids.stride[0],
           largest.as<float>(), largest ? largest.stride[0] : 0, input.rows<const T>(), int(width));
  });
}

}  // namespace wick
