// The scalar codec of quantised blocks; tests/backend/blocks.cpp holds it against gguf-py's and the kernels against it.
#include "wick/core/blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
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

TEST(Blocks, WhatIsNotFiniteStaysWithinItsBlock) {
  for (const DType dtype : {DType::q8_0, DType::q4_0})
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e-45f}) {
      std::vector<float> x(64, 1.0f);
      x[3] = bad;
      const Tensor w = Tensor::empty({64}, dtype);
      quantize_blocks(w.data<void>(), dtype, x.data(), 64);
      EXPECT_NEAR(w.to_vector()[40], 1.0f, 1e-3f);
    }
  std::vector<float> x(256);
  const Tensor w = Tensor::empty({256}, DType::q4_k);
  EXPECT_THROW(quantize_blocks(w.data<void>(), DType::q4_k, x.data(), 256), Error);
}

}  // namespace
}  // namespace wick
