// Mean squared error and cross-entropy.
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/map/map.cuh"
#include "wick/backend/cuda/map/rows.cuh"
#include "wick/backend/cuda/map/total.h"
#include "wick/backend/cuda/runtime/dense.h"

namespace wick {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    squared_difference(double* partial, const AnyFloats a, const AnyFloats b, int64_t n) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < n; i += int64_t(gridDim.x) * kThreads) {
    const float difference = a.load(i) - b.load(i);
    sum += double(difference * difference);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

struct MseBackward {
  const float* dloss;
  double factor;
  __device__ float operator()(float a, float b) const { return float(factor * double(__ldg(dloss))) * (a - b); }
};

// Sum of exp(x - peak), relative to the largest x so far.
struct ExpSum {
  float peak = -INFINITY, total = 0;

  template <int N>
  __device__ __forceinline__ void add(const float (&x)[N]) {
    float highest = peak;
#pragma unroll
    for (int j = 0; j < N; ++j) highest = fmaxf(highest, x[j]);  // skips NaN, which the exponential brings back
    if (highest > peak) {
      total *= expf(peak - highest);
      peak = highest;
    }
    const float shift = peak == -INFINITY ? 0 : peak;
#pragma unroll
    for (int j = 0; j < N; ++j) total += expf(x[j] - shift);
  }
  // Over the block; all threads get it.
  __device__ __forceinline__ void reduce() {
    const float highest = block_reduce<Max>(peak);
    total = block_reduce<Sum>(peak == highest ? total : total * expf(peak - highest));
    peak = highest;
  }
};

struct Targets {
  const int64_t* ids;
  int64_t step;
  __device__ __forceinline__ int64_t operator[](int64_t row) const { return ids[row * step]; }
};

constexpr int kEntropyThreads = 512;

// A block a row, which is read twice: for the sum, and for the gradient, if that is wanted. `slopes` may be `logits`.
template <class T, int N>
__global__ void __launch_bounds__(kEntropyThreads, 2)
    cross_entropy_rows(float* loss, int64_t loss_step, const RowsOf<T> slopes, const RowsOf<const T> logits,
                       const Targets targets, int width) {
  const int64_t row = blockIdx.x, target = targets[row];
  const T* const x = logits[row];
  T* const y = slopes.data ? slopes[row] : nullptr;
  const int first = int(threadIdx.x) * N;
  constexpr int kStep = kEntropyThreads * N;
  if (target < 0) {
    if (threadIdx.x == 0) loss[row * loss_step] = 0;
    for (int i = first; y && i < width; i += kStep) {
      Pack<T, N> zeros;
#pragma unroll
      for (int j = 0; j < N; ++j) zeros.value[j] = from_float<T>(0);
      store_pack(y + i, zeros);
    }
    return;
  }
  const float of_target = to_float(x[target]);  // before anything is written there
  ExpSum sum;
#pragma unroll 2
  for (int i = first; i < width; i += kStep) {
    const auto pack = load_pack<N>(x + i);
    float values[N];
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = element(pack, j);
    sum.add(values);
  }
  sum.reduce();
  if (threadIdx.x == 0) loss[row * loss_step] = sum.peak - of_target + logf(sum.total);
  if (!y) return;
  const float factor = 1 / sum.total;
#pragma unroll 2
  for (int i = first; i < width; i += kStep) {
    const auto pack = load_pack<N>(x + i);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j)
      out.value[j] = from_float<T>(fmaf(expf(element(pack, j) - sum.peak), factor, i + j == target ? -1.0f : 0.0f));
    store_pack(y + i, out);
  }
}

}  // namespace

void CudaBackend::cross_entropy(View loss, View dlogits, View logits, View targets) {
  if (logits.numel() == 0) return;
  const DType dtype = common_dtype({dlogits, logits});
  const RowInput input(*this, logits, dtype);
  const RowOutput output(*this, dlogits, dtype);
  const DenseOutput losses(*this, loss, DType::f32);
  const int64_t rows = logits.dim(0), width = logits.dim(1);
  dispatch_packs(dtype, input.packs() && output.packs(), [&]<class T>(Type<T>, auto pack) {
    launch("cross_entropy", stream_, {unsigned(rows), kEntropyThreads}, cross_entropy_rows<T, pack.value>,
           losses.as<float>(), losses.view().stride[0], output.rows<T>(), input.rows<const T>(),
           Targets{targets.as<const int64_t>(), targets.stride[0]}, int(width));
  });
  output.finish();
  losses.finish();
}

void CudaBackend::mse(View loss, View a, View b) {
  const DenseInput left(*this, a), right(*this, b);
  const int64_t n = a.numel(), blocks = std::clamp<int64_t>(ceil_div(n, 4 * kThreads), 1, 1024);
  const Scratch partial(*this, size_t(blocks) * sizeof(double));
  launch("mse", stream_, {unsigned(blocks), kThreads}, squared_difference, partial.as<double>(), AnyFloats(left.view()),
         AnyFloats(right.view()), n);
  total_of(*this, loss, partial.as<double>(), blocks, double(n));
}

void CudaBackend::mse_backward(View da, View dloss, View a, View b) {
  const MseBackward f{dloss.as<const float>(), 2.0 / double(a.numel())};
  map(*this, "mse_backward", f, std::array<View, 3>{da, a, b});
}

}  // namespace wick
