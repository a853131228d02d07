// Mean squared error.
#include "wick/backend/cuda/dense.h"
#include "wick/backend/cuda/device/map.cuh"
#include "wick/backend/cuda/device/total.cuh"

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

}  // namespace

void CudaBackend::mse(View loss, View a, View b) {
  const DenseInput left(*this, a), right(*this, b);
  const int64_t n = a.numel(), blocks = std::clamp<int64_t>((n + 4 * kThreads - 1) / (4 * kThreads), 1, 1024);
  const Scratch partial(*this, size_t(blocks) * sizeof(double));
  squared_difference<<<unsigned(blocks), kThreads, 0, stream_>>>(partial.as<double>(), AnyFloats(left.view()),
                                                                 AnyFloats(right.view()), n);
  cuda_launched("mse");
  total_of(*this, loss, partial.as<double>(), blocks, double(n));
}

void CudaBackend::mse_backward(View da, View dloss, View a, View b) {
  const MseBackward f{dloss.as<const float>(), 2.0 / double(a.numel())};
  map(*this, "mse_backward", f, std::array<View, 3>{da, a, b});
}

}  // namespace wick
