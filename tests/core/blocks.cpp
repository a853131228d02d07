// The scalar codec of quantised blocks; tests/backend/blocks.cpp holds it against gguf-py's and the kernels against it.
#include "wick/core/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "wick/core/memory.h"
#include "wick/core/tensor.h"

namespace wick {
namespace {

constexpr DType kBlockTypes[] = {DType::q8_0, DType::q4_0, DType::q4_k, DType::q5_k, DType::q6_k};

TEST(Blocks, RowsAreWholeBlocks) {
  for (const DType dtype : kBlockTypes) {
    const BlockSize block = block_of(dtype);
    EXPECT_EQ(bytes_of(dtype, 3 * block.elements), 3 * block.bytes);
    const size_t before = host_memory().in_use();
    const Tensor w = Tensor::empty({5, 2 * block.elements}, dtype);
    EXPECT_EQ(host_memory().in_use() - before, size_t(10 * block.bytes));
    EXPECT_EQ(w.window({1, 2 * block.elements}, w.stride(), 8 * block.elements).data<char>(),
              w.data<char>() + 8 * block.bytes);
    EXPECT_THROW(Tensor::empty({block.elements, 16}, dtype), Error);
    EXPECT_THROW(Tensor::empty({}, dtype), Error);
    EXPECT_THROW(w.window({1, 16}, w.stride(), 16), Error);
    EXPECT_THROW(w.trainable(), Error);
    EXPECT_THROW(size_of(dtype), Error);
    EXPECT_TRUE(is_block(dtype) && !is_float(dtype));
  }
  EXPECT_EQ(block_of(DType::bf16).elements, 1);
  EXPECT_EQ(bytes_of(DType::i64, 3), 24);
}

TEST(Blocks, ScalesOfSixBitsTakeEveryValue) {
  for (int g = 0; g < 8; ++g)
    for (int value = 0; value < 64; ++value)
      for (const bool minimum : {false, true}) {
        GroupScales groups{};
        uint8_t* b = groups.bytes;
        if (g < 4) {
          b[g + 4 * minimum] = uint8_t(value);
        } else {
          b[g + 4] = uint8_t((value & 15) << 4 * minimum);
          b[g - 4 + 4 * minimum] = uint8_t(value >> 4 << 6);
        }
        for (int other = 0; other < 8; ++other) {
          EXPECT_EQ(groups.scale(other), other == g && !minimum ? value : 0);
          EXPECT_EQ(groups.minimum(other), other == g && minimum ? value : 0);
        }
      }
}

// A number is off by half a step at most, and the largest, which sets the step, is exact up to the scale's rounding.
TEST(Blocks, QuantisingIsWithinHalfAStep) {
  for (const DType dtype : {DType::q8_0, DType::q4_0}) {
    std::vector<float> x(64);
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(float(i) * 1.7f) * float(i + 1);
    const Tensor w = Tensor::empty({64}, dtype);
    quantize_blocks(w.data<void>(), dtype, x.data(), 64);
    const std::vector<float> y = w.to_vector();
    for (size_t begin : {size_t{0}, size_t{32}}) {
      float largest = 0;
      for (size_t i = begin; i < begin + 32; ++i) largest = std::max(largest, std::abs(x[i]));
      const float step = dtype == DType::q8_0 ? largest / 127 : largest / 8;
      const float scale_error = std::ldexp(largest, -11) * 1.01f;
      for (size_t i = begin; i < begin + 32; ++i) {
        // q4_0 has 16 numbers for -8 to 7: on the side away from the largest, values above 7 steps are cut.
        const float slack = dtype == DType::q8_0 ? 0 : step / 2;
        EXPECT_LE(std::abs(x[i] - y[i]), step / 2 + slack + scale_error) << name_of(dtype) << " at " << i;
      }
    }
  }
}

constexpr DType kKTypes[] = {DType::q4_k, DType::q5_k, DType::q6_k};

std::vector<float> normal(size_t count, uint64_t seed = 3) {
  std::mt19937_64 engine(seed);
  std::vector<float> x(count);
  for (float& value : x) {  // a sum of 12 uniform ones, whose variance is 1
    value = -6;
    for (int i = 0; i < 12; ++i) value += float(engine() >> 40) * 0x1p-24f;
  }
  return x;
}

Tensor quantised(const std::vector<float>& x, DType dtype) {
  const Tensor w = Tensor::empty({int64_t(x.size())}, dtype);
  quantize_blocks(w.data<void>(), dtype, x.data(), int64_t(x.size()));
  return w;
}

double relative_error(const std::vector<float>& y, const std::vector<float>& x) {
  double errors = 0, squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    errors += std::pow(double(y[i]) - x[i], 2);
    squares += double(x[i]) * x[i];
  }
  return std::sqrt(errors / squares);
}

double relative_error(const std::vector<float>& x, DType dtype) {
  return relative_error(quantised(x, dtype).to_vector(), x);
}

// What a group of a block can hold.
struct Grid {
  double step, low, high;
};
Grid grid(const Q6KBlock& b, int i) {
  const double step = double(f16_to_f32(b.d)) * b.scale[i / 16], ends[] = {-32 * step, 31 * step};
  return {std::abs(step), std::min(ends[0], ends[1]), std::max(ends[0], ends[1])};
}
template <class Block>
Grid grid(const Block& b, int i) {
  const double step = double(f16_to_f32(b.d)) * b.groups.scale(i / 32);
  const double low = -double(f16_to_f32(b.dmin)) * b.groups.minimum(i / 32);
  return {step, low, low + (sizeof(Block) == sizeof(Q4KBlock) ? 15 : 31) * step};
}

// Values of every kind of group: about zero, on one side of it, of other sizes than their neighbours', constant, zero.
std::vector<float> groups_of_all_kinds() {
  std::vector<float> x = normal(256 * 64);
  for (size_t g = 0; g < x.size() / 16; ++g)
    for (size_t i = g * 16; i < g * 16 + 16; ++i) switch (g * 2654435761u >> 7 & 7) {
        case 0:
          x[i] += 5;
          break;
        case 1:
          x[i] = -std::abs(x[i]) - 2;
          break;
        case 2:
          x[i] *= 1e-3f;
          break;
        case 3:
          x[i] = i % 16 == 3 ? 40 : x[i];
          break;
        case 4:
          x[i] = x[g * 16] * 3;
          break;
        case 5:
          x[i] = 0;
          break;
        default:
          break;
      }
  return x;
}

// Each element is the nearest number of its group's grid: half a step away, or beyond the grid's end and there. The
// slack is that of f32's rounding in (x + minimum) / step, which has a few operations on numbers up to `size`.
TEST(Blocks, KTypesTakeTheNearestNumbers) {
  const std::vector<float> x = groups_of_all_kinds();
  for (const DType dtype : kKTypes) {
    const Tensor w = quantised(x, dtype);
    const std::vector<float> y = w.to_vector();
    const auto check_block = [&]<class Block>(Block*) {
      for (size_t i = 0; i < x.size(); ++i) {
        const Grid g = grid(w.data<Block>()[i / 256], int(i % 256));
        const double size = std::max({std::abs(double(x[i])), -g.low, g.high}), slack = 8 * 0x1p-24 * size;
        const double beyond = std::max({g.low - x[i], x[i] - g.high, 0.0});
        ASSERT_LE(std::abs(y[i] - double(x[i])), std::max(g.step / 2, beyond) + slack) << name_of(dtype) << " at " << i;
      }
    };
    dtype == DType::q4_k   ? check_block(static_cast<Q4KBlock*>(nullptr))
    : dtype == DType::q5_k ? check_block(static_cast<Q5KBlock*>(nullptr))
                           : check_block(static_cast<Q6KBlock*>(nullptr));
  }
}

// The error of groups that lie on a grid from their least to their greatest number, or zero, exactly.
double error_between_extremes(const std::vector<float>& x, size_t length, int steps) {
  std::vector<float> y(x.size());
  for (size_t begin = 0; begin < x.size(); begin += length) {
    const auto [low, high] = std::minmax_element(&x[begin], &x[begin] + length);
    const double least = std::min(double(*low), 0.0), step = (*high - least) / steps;
    for (size_t i = begin; i < begin + length; ++i)
      y[i] = step > 0 ? float(least + step * std::round((x[i] - least) / step)) : float(least);
  }
  return relative_error(y, x);
}

// Steps of a group's span over 15 and 31, and in q6_k of its greatest magnitude over 31, have errors that a search
// lowers by more than the scales' rounding raises them.
TEST(Blocks, KTypesSearchForTheirScales) {
  const std::vector<float> x = normal(1 << 17);
  const double four = relative_error(x, DType::q4_k), five = relative_error(x, DType::q5_k),
               six = relative_error(x, DType::q6_k);
  EXPECT_LT(four, 0.98 * error_between_extremes(x, 32, 15));
  EXPECT_LT(five, 0.98 * error_between_extremes(x, 32, 31));
  EXPECT_LT(six, 0.9 * error_between_extremes(x, 16, 31));
  EXPECT_LT(four, 0.86 * relative_error(x, DType::q4_0));
  EXPECT_NEAR(four, 0.0716, 0.001);
  EXPECT_NEAR(five, 0.0354, 0.001);
  EXPECT_NEAR(six, 0.0167, 0.001);
}

TEST(Blocks, KTypesKeepZerosAndConstants) {
  for (const DType dtype : kKTypes) {
    for (const float value : quantised(std::vector<float>(512), dtype).to_vector()) EXPECT_EQ(value, 0);
    for (const float constant : {0.7f, -0.7f, 3e4f})
      for (const float value : quantised(std::vector<float>(256, constant), dtype).to_vector())
        EXPECT_NEAR(value, constant, std::abs(constant) * 0x1p-10) << name_of(dtype);  // two roundings to f16's 11 bits
    std::vector<float> x(256);                                                         // one group of 32 has numbers
    for (size_t i = 64; i < 96; ++i) x[i] = i % 2 ? 1.0f : -1.0f;
    const std::vector<float> y = quantised(x, dtype).to_vector();
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], x[i] == 0 ? 0 : 1e-3f) << name_of(dtype) << i;
  }
}

// Powers of two change no code, from values near f16's largest scales to those near its least ones.
TEST(Blocks, KTypesAreAlikeInAllSizes) {
  const std::vector<float> x = normal(2048);
  for (const DType dtype : kKTypes) {
    const std::vector<float> y = quantised(x, dtype).to_vector();
    for (const int power : {18, 5, -2}) {
      std::vector<float> scaled = x;
      for (float& value : scaled) value = std::ldexp(value, power);
      std::vector<float> want = y;
      for (float& value : want) value = std::ldexp(value, power);
      EXPECT_EQ(quantised(scaled, dtype).to_vector(), want) << name_of(dtype) << " " << power;
    }
    // Scales below f16's least number would be zero: few steps of that number are left.
    std::vector<float> tiny = x;
    for (float& value : tiny) value *= 4e-7f;
    EXPECT_LT(relative_error(tiny, dtype), 0.2) << name_of(dtype);
  }
}

TEST(Blocks, KTypesShowWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : kKTypes)
    for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 1e9f, -3e38f}) {
      std::vector<float> x(512, 1.0f);
      x[3] = bad;
      const std::vector<float> y = quantised(x, dtype).to_vector();
      for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i < 256) << name_of(dtype) << " of " << bad;
      EXPECT_NEAR(y[300], 1.0f, 1e-3f);
    }
  EXPECT_THROW(quantised(std::vector<float>(96), DType::q4_k), Error);
}

TEST(Blocks, WhatIsNotFiniteStaysWithinItsBlock) {
  for (const DType dtype : {DType::q8_0, DType::q4_0})
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e-45f}) {
      std::vector<float> x(64, 1.0f);
      x[3] = bad;
      const Tensor w = Tensor::empty({64}, dtype);
      quantize_blocks(w.data<void>(), dtype, x.data(), 64);
      EXPECT_NEAR(w.to_vector()[40], 1.0f, 1e-3f);
    }
}

}  // namespace
}  // namespace wick
