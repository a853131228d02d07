// The codec of quantised rows; tests/io/row_formats.cpp holds it against the programs that made the formats up.
#include "wick/core/row_formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "wick/core/blocks.h"
#include "wick/core/dynamic_map.h"
#include "wick/core/tensor.h"

namespace wick {
namespace {

constexpr DType kFormats[] = {DType::fp8, DType::fp8_block,  DType::int8,
                              DType::nf4, DType::nf4_double, DType::fp8_product};

std::vector<float> waves(int64_t rows, int64_t cols) {
  std::vector<float> x(size_t(rows * cols));
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(float(i) * 1.7f) * float(1 + i % 97);
  return x;
}

Tensor quantized(const std::vector<float>& x, DType dtype, int64_t cols) {
  const int64_t rows = int64_t(x.size()) / cols;
  const Tensor w = Tensor::empty({rows, cols}, dtype);
  quantize_rows(w.data<void>(), dtype, x.data(), rows, cols);
  return w;
}

TEST(RowFormats, RowsEndWithTheirScales) {
  EXPECT_EQ(row_layout(DType::fp8, 3072).bytes, 3072 + 16);
  EXPECT_EQ(row_layout(DType::int8, 3).bytes, 16);
  EXPECT_EQ(row_layout(DType::fp8_block, 3072).bytes, 3072 + 4 * 24);
  EXPECT_EQ(row_layout(DType::nf4, 3072).bytes, 1536 + 4 * 48);
  EXPECT_EQ(row_layout(DType::nf4_double, 3072).bytes, 1536 + 48 + 16);  // 8 bytes beside two scales
  for (const DType dtype : kFormats) {
    const int64_t bytes = row_bytes(dtype, 384);
    const size_t before = host_memory().in_use();
    const Tensor w = Tensor::empty({5, 384}, dtype);
    EXPECT_EQ(host_memory().in_use() - before, size_t(5 * bytes));
    EXPECT_EQ(w.window({2, 384}, w.stride(), 3 * 384).data<char>(), w.data<char>() + 3 * bytes);
    EXPECT_THROW(w.window({1, 128}, w.stride(), 128), Error);  // no row begins there
    EXPECT_THROW(Tensor::empty({384}, dtype), Error);
    EXPECT_THROW(w.trainable(), Error);
    EXPECT_THROW(size_of(dtype), Error);
    EXPECT_THROW(bytes_of(dtype, 384), Error);
    EXPECT_TRUE(is_quantized(dtype) && !is_block(dtype) && !is_float(dtype));
  }
  for (const DType dtype : {DType::fp8_block, DType::nf4, DType::nf4_double})
    EXPECT_THROW(Tensor::empty({5, 96}, dtype), Error);
}

// Every element is within half a step of its format: 2^-4 of a number in fp8, half a 127th of the largest in int8, half
// the widest gap of nf4 (0.304 of the largest), and in nf4_double what the largest itself is off, too.
TEST(RowFormats, QuantisingIsWithinHalfAStep) {
  const int64_t rows = 7, cols = 384;
  const std::vector<float> x = waves(rows, cols);
  for (const DType dtype : kFormats) {
    const std::vector<float> y = quantized(x, dtype, cols).to_vector();
    const int64_t run = row_format(dtype).run == 0 ? cols : row_format(dtype).run;
    for (size_t begin = 0; begin < x.size(); begin += size_t(run)) {
      float largest = 0;
      for (size_t i = begin; i < begin + size_t(run); ++i) largest = std::max(largest, std::abs(x[i]));
      for (size_t i = begin; i < begin + size_t(run); ++i) {
        float most = 0;
        if (dtype == DType::int8)
          most = largest / 254;
        else if (row_format(dtype).bits == 8)
          most = std::max(std::abs(x[i]) / 16, largest / 448 * 0x1p-10f);
        else
          most = 0.1522f * largest + (dtype == DType::nf4_double ? 0.06f * 97 : 0);
        ASSERT_LE(std::abs(x[i] - y[i]), most * 1.0001f) << name_of(dtype) << " at " << i;
      }
    }
  }
}

TEST(RowFormats, MagnitudesShareAScaleAcrossRows) {
  const int64_t rows = 300, cols = 192;  // 900 magnitudes, three a row: rows begin at many places among 256
  const std::vector<float> x = waves(rows, cols);
  const std::vector<float> plain = quantized(x, DType::nf4, cols).to_vector();
  const std::vector<float> nested = quantized(x, DType::nf4_double, cols).to_vector();
  for (size_t i = 0; i < x.size(); ++i)  // the map's widest gap is 0.014 of the farthest magnitude from the mean
    ASSERT_NEAR(nested[i], plain[i], 0.007f * 97 * (std::abs(plain[i]) > 0 ? 1 : 0)) << i;
}

TEST(RowFormats, WhatIsNotFiniteStaysInItsRun) {
  for (const DType dtype : kFormats)
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> x = waves(3, 128);
      x[128 + 3] = bad;
      const std::vector<float> y = quantized(x, dtype, 128).to_vector();
      EXPECT_FALSE(std::isfinite(y[128 + 3])) << name_of(dtype);
      EXPECT_TRUE(dtype == DType::nf4_double || (std::isfinite(y[5]) && std::isfinite(y[256]))) << name_of(dtype);
    }
}

TEST(RowFormats, EveryE4m3IsExactInF32) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = e4m3_to_f32(uint8_t(bits));
    EXPECT_EQ(f32_to_e4m3(value), bits) << value;  // NaN and -0 too
  }
  EXPECT_EQ(e4m3_to_f32(0x7e), 448);
  EXPECT_EQ(f32_to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(f32_to_e4m3(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(f32_to_e4m3(0x1p-10f), 0);  // a tie, to even
}

TEST(RowFormats, TheDynamicMapHasItsSums) {
  const auto& map = kSignedMap.values;
  EXPECT_TRUE(std::is_sorted(std::begin(map), std::end(map)));
  EXPECT_EQ(map[127], 0);
  EXPECT_EQ(map[255], 1);
  EXPECT_NEAR(std::accumulate(std::begin(map), std::end(map), 0.0), 1, 1e-6);
  EXPECT_NEAR(std::inner_product(std::begin(map), std::end(map), std::begin(map), 0.0), 48.59584, 1e-5);
}

}  // namespace
}  // namespace wick
