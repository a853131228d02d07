// Random tensors: philox block i gives elements 4i .. 4i + 3, whatever the number of threads.
#include <algorithm>
#include <cassert>

#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/parallel.h"
#include "wick/core/rng.h"

namespace wick {
namespace {

std::array<float, 4> uniforms(const std::array<uint32_t, 4>& bits) {
  return {bits_to_uniform(bits[0]), bits_to_uniform(bits[1]), bits_to_uniform(bits[2]), bits_to_uniform(bits[3])};
}

std::array<float, 4> normals(const std::array<uint32_t, 4>& bits) {
  const auto first = bits_to_normals(bits[0], bits[1]), second = bits_to_normals(bits[2], bits[3]);
  return {first[0], first[1], second[0], second[1]};
}

template <class Numbers>
void fill_random(const View& y, uint64_t seed, uint32_t stream, uint64_t position, const Numbers& numbers) {
  assert(y.dtype == DType::f32 && y.contiguous());
  constexpr int64_t kWork = 16;  // elementwise operations that one number costs, about
  const int64_t n = y.numel();
  parallel_each((n + 3) / 4, n * kWork, [&](int64_t block) {
    const auto values = numbers(philox(seed, stream, position + uint64_t(block)));
    std::copy_n(values.begin(), std::min<int64_t>(4, n - 4 * block), y.as<float>() + 4 * block);
  });
}

}  // namespace

void CpuBackend::fill_uniform(View y, uint64_t seed, uint32_t stream, uint64_t position) {
  fill_random(y, seed, stream, position, uniforms);
}

void CpuBackend::fill_normal(View y, uint64_t seed, uint32_t stream, uint64_t position) {
  fill_random(y, seed, stream, position, normals);
}

}  // namespace wick
