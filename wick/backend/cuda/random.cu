// Random tensors: philox block i gives elements 4i .. 4i + 3. The device's form of core/rng.h.
#include <cassert>

#include "wick/backend/cuda/cuda.h"
#include "wick/backend/cuda/device/numbers.cuh"

namespace wick {
namespace {

constexpr int kThreads = 256;

struct Words {
  uint32_t word[4];
};
struct Numbers {
  float value[4];
};

__device__ Words philox_words(uint64_t seed, uint32_t stream, uint64_t position) {
  uint32_t c0 = uint32_t(position), c1 = uint32_t(position >> 32), c2 = stream, c3 = 0;
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

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
    fill_random(float* y, int64_t n, uint64_t seed, uint32_t stream, uint64_t position, Make make) {
  const int64_t block = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (4 * block >= n) return;
  const Numbers numbers = make(philox_words(seed, stream, position + uint64_t(block)));
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (4 * block + i < n) y[4 * block + i] = numbers.value[i];
}

template <class Make>
void launch(CudaBackend& cuda, const View& y, uint64_t seed, uint32_t stream, uint64_t position, Make make) {
  assert(y.dtype == DType::f32 && y.contiguous());
  const int64_t n = y.numel(), threads = (n + 3) / 4;
  if (n == 0) return;
  fill_random<<<unsigned((threads + kThreads - 1) / kThreads), kThreads, 0, cuda.stream()>>>(y.as<float>(), n, seed,
                                                                                             stream, position, make);
  cuda_launched("fill_random");
}

}  // namespace

void CudaBackend::fill_uniform(View y, uint64_t seed, uint32_t stream, uint64_t position) {
  launch(*this, y, seed, stream, position, Uniforms());
}

void CudaBackend::fill_normal(View y, uint64_t seed, uint32_t stream, uint64_t position) {
  launch(*this, y, seed, stream, position, Normals());
}

}  // namespace wick
