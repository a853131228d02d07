// Fresh random inputs, poisoned outputs in any layout, and comparisons with double-precision references.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "backend/first_tier.h"
#include "backend/mirror.h"
#include "backend/products.h"
#include "device.h"
#include "wick/core/rng.h"

namespace wick::probe {

// WICK_TEST_COMPOSED=1 tests compositions in place of what the device has for the contract's second tier.
inline bool is_composed() { return std::getenv("WICK_TEST_COMPOSED"); }
inline bool is_mirrored() { return is_composed() || !test::memory().on_host(); }

// Takes views of host memory, whatever device computes. All that is made here lives as long as the program.
inline Backend& backend() {
  static Backend& tested = []() -> Backend& {
    Backend& computes = is_composed() ? *new FirstTier(test::backend()) : test::backend();
    return is_mirrored() ? *new Mirror(computes) : computes;
  }();
  return tested;
}

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

inline bool on_cpu() { return test::memory().on_host(); }

// The dtype of activations: f32, or the one in WICK_TEST_DTYPE (bf16, f16), on devices with others.
inline DType activations() {
  static const DType dtype = [] {
    const char* name = std::getenv("WICK_TEST_DTYPE");
    if (!name) return DType::f32;
    for (DType t : {DType::f32, DType::bf16, DType::f16})
      if (name_of(t) == name) return t;
    fail("WICK_TEST_DTYPE: expected f32, bf16 or f16, found {}", name);
  }();
  return dtype;
}

// The largest relative error of rounding to a dtype once.
inline double unit_roundoff(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
}

// A new seed each run, printed; WICK_TEST_SEED=... repeats one.
inline uint64_t seed() {
  static const uint64_t value = [] {
    const char* given = std::getenv("WICK_TEST_SEED");
    const uint64_t s = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("WICK_TEST_SEED=%llu\n", static_cast<unsigned long long>(s));
    return s;
  }();
  return value;
}

inline Rng& rng() {
  static Rng generator(seed());
  return generator;
}

inline int64_t between(int64_t low, int64_t high) { return low + int64_t(rng().below(uint64_t(high - low + 1))); }

// A tensor's layout: row-major; rows with a gap after each; the last two dims swapped; every element apart.
enum class Layout { packed, gapped, swapped, spread };
inline constexpr Layout kLayouts[] = {Layout::packed, Layout::gapped, Layout::swapped, Layout::spread};

// A tensor whose whole storage holds NaN.
inline Tensor poisoned(const Shape& shape, Layout layout = Layout::packed, DType dtype = DType::f32) {
  Shape outer = shape, stride;
  const int last = shape.rank() - 1;
  if (layout == Layout::gapped) outer[last] += 3;
  if (layout == Layout::spread) outer[last] *= 2;
  if (layout == Layout::swapped && last > 0) std::swap(outer[last], outer[last - 1]);
  Tensor base = Tensor::empty(outer, dtype);
  std::memset(base.data<void>(), 0xff, size_t(base.numel()) * size_of(dtype));
  stride = base.stride();
  if (layout == Layout::spread) stride[last] = 2;
  if (layout == Layout::swapped && last > 0) std::swap(stride[last], stride[last - 1]);
  return base.window(shape, stride);
}

// Calls f(offset) for every element, in row-major order.
template <class F>
void for_each_offset(const Tensor& t, F f) {
  if (t.numel() == 0) return;
  const int64_t width = t.dim(-1), step = t.stride()[t.rank() - 1];
  for (int64_t row = 0; row < t.numel() / width; ++row) {
    int64_t rest = row, offset = 0;
    for (int d = t.rank() - 2; d >= 0; rest /= t.dim(d), --d) offset += rest % t.dim(d) * t.stride()[d];
    for (int64_t i = 0; i < width; ++i) f(offset + i * step);
  }
}

// The number of rounds of fresh inputs: WICK_TEST_PERCENT of `all`, for tools that make everything slow.
inline int rounds(int all) {
  const char* const percent = std::getenv("WICK_TEST_PERCENT");
  return percent ? std::max(1, all * std::atoi(percent) / 100) : all;
}

// Uniform in [-1, 1), four numbers from a Philox block.
inline Tensor random(const Shape& shape, Layout layout = Layout::packed, DType dtype = DType::f32) {
  Tensor t = poisoned(shape, layout, dtype);
  uint64_t position = rng().reserve(uint64_t(t.numel() + 3) / 4);
  std::array<uint32_t, 4> bits{};
  size_t used = bits.size();
  for_each_offset(t, [&](int64_t offset) {
    if (used == bits.size()) {
      bits = philox(rng().seed(), rng().stream(), position++);
      used = 0;
    }
    const float value = 2 * bits_to_uniform(bits[used++]) - 1;
    if (dtype == DType::f32) t.data<float>()[offset] = value;
    if (dtype == DType::bf16) t.data<uint16_t>()[offset] = f32_to_bf16(value);
    if (dtype == DType::f16) t.data<uint16_t>()[offset] = f32_to_f16(value);
  });
  return t;
}

// Activations: like random() and poisoned(), in the dtype that is tested.
inline Tensor input(const Shape& shape, Layout layout = Layout::packed) { return random(shape, layout, activations()); }
inline Tensor output(const Shape& shape, Layout layout = Layout::packed) {
  return poisoned(shape, layout, activations());
}

inline Tensor random_ids(const Shape& shape, int64_t rows) {
  std::vector<int64_t> ids(size_t(shape.numel()));
  for (int64_t& id : ids) id = between(0, rows - 1);
  return Tensor::of(ids, shape);
}

inline Doubles doubles(const Tensor& t) {
  const std::vector<float> values = t.to_vector();
  return {values.begin(), values.end()};
}

// `tolerance` is absolute and allows for f32 arithmetic; results stored in 16 bits may be off by one more rounding. NaN
// is never close.
inline void expect_close(const Tensor& got, const Doubles& want, double tolerance, const char* what) {
  const double roundoff = got.dtype() == DType::f32 ? 0 : unit_roundoff(got.dtype());
  const double smallest = got.dtype() == DType::f16 ? 0x1p-25 : 0;  // half a unit of f16's subnormal numbers
  const std::vector<float> values = got.to_vector();
  ASSERT_EQ(values.size(), want.size()) << what;
  size_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::abs(values[i] - want[i]) <= tolerance + (std::abs(want[i]) + tolerance) * roundoff + smallest) continue;
    if (++wrong <= 3)
      ADD_FAILURE() << what << " " << to_string(got.shape()) << " at " << i << ": got " << values[i] << ", want "
                    << want[i] << ", tolerance " << tolerance;
  }
  EXPECT_EQ(wrong, 0u) << what;
}

inline void expect_same_bits(const Tensor& a, const Tensor& b, const char* what) {
  const std::vector<float> x = a.to_vector(), y = b.to_vector();
  EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)), 0) << what;
}

// work() on the device's own tensors gives the same bits when it is recorded and replayed.
inline void expect_replay(const std::function<void()>& work, const std::vector<Tensor>& outputs) {
  Memory& memory = test::memory();
  work();  // plans are made on a first call
  std::vector<Tensor> want;
  for (const Tensor& t : outputs) want.push_back(t.to(host_memory()));
  memory.enter_arena();
  const auto replay = test::backend().capture(work);
  memory.leave_arena();
  if (!replay) GTEST_SKIP() << "nothing is recorded here";
  for (const Tensor& t : outputs) test::backend().fill(t, std::numeric_limits<float>::quiet_NaN());
  replay->run();
  for (size_t i = 0; i < outputs.size(); ++i) expect_same_bits(outputs[i].to(host_memory()), want[i], "replayed");
}

inline constexpr double kEps = std::numeric_limits<float>::epsilon();

}  // namespace wick::probe
