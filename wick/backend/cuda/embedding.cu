// Table look-up, and the sines and cosines of timesteps.
#include <cassert>
#include <cmath>

#include "wick/backend/cuda/dense.h"
#include "wick/backend/cuda/device/any_float.cuh"

namespace wick {
namespace {

constexpr int kThreads = 128;

// A block copies a row.
__global__ void __launch_bounds__(kThreads)
    embedding_rows(const AnyFloats y, const AnyFloats table, int64_t table_row, const int64_t* ids, int64_t width) {
  const int64_t from = ids[blockIdx.x] * table_row, to = blockIdx.x * width;
  for (int64_t d = threadIdx.x; d < width; d += kThreads) y.store(to + d, table.load(from + d));
}

// A block has one position and kThreads columns. Where an id stands first, the rows of all its positions are added, in
// their order; each warp looks through 32 ids at once.
__global__ void __launch_bounds__(kThreads)
    embedding_gather(const AnyFloats dtable, const AnyFloats dy, const int64_t* ids, int64_t n, int64_t width) {
  const int64_t position = blockIdx.x, id = ids[position];
  bool earlier = false;
  for (int64_t i = threadIdx.x; i < position; i += kThreads) earlier |= ids[i] == id;
  if (__syncthreads_or(earlier)) return;
  const int64_t d = int64_t(blockIdx.y) * kThreads + threadIdx.x;
  const int lane = threadIdx.x % 32;
  float sum = 0;
  for (int64_t i = position; i < n; i += 32) {
    unsigned same = __ballot_sync(0xffffffffu, i + lane < n && ids[i + lane] == id);
    for (; same != 0; same &= same - 1)
      if (d < width) sum += dy.load((i + __ffs(int(same)) - 1) * width + d);
  }
  if (d < width) dtable.store(id * width + d, sum);
}

// The angle's rounding to f32 is part of what models were trained with, so the frequency is the nearest f32, too.
__global__ void __launch_bounds__(kThreads)
    timestep_sines(const AnyFloats y, int64_t y_row, int64_t y_column, const AnyFloats t, int64_t t_step, int64_t n,
                   int half, float log_period) {
  const int64_t item = int64_t(blockIdx.x) * kThreads + threadIdx.x, row = item / half;
  const int i = int(item - row * half);
  if (row >= n) return;
  const float frequency = float(exp(double(__fdiv_rn(-log_period * float(i), float(half)))));
  const double angle = double(__fmul_rn(t.load(row * t_step), frequency));
  y.store(row * y_row + i * y_column, float(cos(angle)));
  y.store(row * y_row + (half + i) * y_column, float(sin(angle)));
}

}  // namespace

void CudaBackend::embedding(View y, View table, View ids) {
  assert(ids.dtype == DType::i64);
  const int64_t n = ids.numel(), width = table.dim(1);
  if (n * width == 0) return;
  const DenseInput rows(*this, ids);
  const bool walks = width == 1 || table.stride[1] == 1;
  const DenseInput dense(*this, walks ? View() : table);
  const View& from = walks ? table : dense.view();
  const DenseOutput output(*this, y);
  embedding_rows<<<unsigned(n), kThreads, 0, stream_>>>(AnyFloats(output.view()), AnyFloats(from), from.stride[0],
                                                        rows.as<int64_t>(), width);
  cuda_launched("embedding");
  output.finish();
}

void CudaBackend::embedding_backward(View dtable, View dy, View ids) {
  assert(ids.dtype == DType::i64);
  const int64_t n = ids.numel(), width = dtable.dim(1);
  const DenseInput positions(*this, ids), grads(*this, dy);
  const DenseOutput output(*this, dtable);
  fill(output.view(), 0);
  if (n * width > 0) {
    const dim3 blocks(unsigned(n), unsigned((width + kThreads - 1) / kThreads));
    embedding_gather<<<blocks, kThreads, 0, stream_>>>(AnyFloats(output.view()), AnyFloats(grads.view()),
                                                       positions.as<int64_t>(), n, width);
    cuda_launched("embedding_backward");
  }
  output.finish();
}

void CudaBackend::timestep_embedding(View y, View t, float max_period) {
  const int64_t n = t.numel(), half = y.dim(1) / 2;
  if (n * half == 0) return;
  timestep_sines<<<unsigned((n * half + kThreads - 1) / kThreads), kThreads, 0, stream_>>>(
      AnyFloats(y), y.stride[0], y.stride[1], AnyFloats(t), t.stride[0], n, int(half), std::log(max_period));
  cuda_launched("timestep_embedding");
}

}  // namespace wick
