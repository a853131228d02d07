// Random tensors: philox block i gives elements 4i .. 4i + 3.
#include <cassert>

#include "wick/backend/cuda/cuda.h"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/numbers.cuh"
#include "wick/backend/cuda/device/philox.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kThreads = 256;

struct Numbers {
  float value[4];
};

struct Uniforms {
  __device__ Numbers operator()(const Words& bits) const {
    Numbers numbers;
#pragma unroll
    for (int i = 0; i < 4; ++i) numbers.value[i] = float(bits.word[i] >> 8) * 0x1p-24f;
    return numbers;
  }
};

// Box-Muller in double precision, so that the floats are those of the CPU but for rare roundings.
struct Normals {
  __device__ Numbers operator()(const Words& bits) const {
    Numbers numbers;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const double u = (double(bits.word[i]) + 1.0) * 0x1p-32;  // (0, 1]: the logarithm is finite
      const double radius = sqrt(-2.0 * log(u));
      double sine, cosine;
      sincos(2.0 * M_PI * double(bits.word[i + 1]) * 0x1p-32, &sine, &cosine);
      numbers.value[i] = float(radius * cosine);
      numbers.value[i + 1] = float(radius * sine);
    }
    return numbers;
  }
};

template <class Make>
__global__ void __launch_bounds__(kThreads)
    make_numbers(float* y, int64_t n, uint64_t seed, uint32_t stream, uint64_t position, Make make) {
  const int64_t block = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (4 * block >= n) return;
  const Numbers numbers = make(philox_words(seed, stream, position + uint64_t(block)));
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (4 * block + i < n) y[4 * block + i] = numbers.value[i];
}

template <class Make>
void fill_random(CudaBackend& cuda, const View& y, uint64_t seed, uint32_t stream, uint64_t position, Make make) {
  assert(y.dtype == DType::f32 && y.contiguous());
  const int64_t n = y.numel();
  if (n == 0) return;
  launch("fill_random", cuda.stream(), {unsigned(ceil_div(n, 4 * kThreads)), kThreads}, make_numbers<Make>,
         y.as<float>(), n, seed, stream, position, make);
}

}  // namespace

void CudaBackend::fill_uniform(View y, uint64_t seed, uint32_t stream, uint64_t position) {
  fill_random(*this, y, seed, stream, position, Uniforms());
}

void CudaBackend::fill_normal(View y, uint64_t seed, uint32_t stream, uint64_t position) {
  fill_random(*this, y, seed, stream, position, Normals());
}

}  // namespace wick
