// Quantised rows have the bytes of bitsandbytes' and PyTorch's quantisers (tools/golden/row_formats.py).
#include "wick/core/row_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "source_dir.h"
#include "wick/core/dynamic_map.h"
#include "wick/io/safetensors.h"

namespace wick {
namespace {

constexpr int64_t kRows = 24, kCols = 320;

class RowFormatsOfOthers : public testing::Test {
 protected:
  Tensor golden(const char* name) const { return file_.load(name); }
  std::vector<uint8_t> bytes(const char* name) const {
    const Tensor t = golden(name);
    return {t.data<uint8_t>(), t.data<uint8_t>() + t.numel()};
  }
  std::vector<float> floats(const char* name) const { return golden(name).to_vector(); }

  static std::vector<uint8_t> quantized(DType dtype, const std::vector<float>& x) {
    std::vector<uint8_t> rows(size_t(kRows * row_bytes(dtype, kCols)));
    quantize_rows(rows.data(), dtype, x.data(), kRows, kCols);
    return rows;
  }
  // Calls f(row, its first byte).
  template <class F>
  static void each_row(const std::vector<uint8_t>& rows, DType dtype, const F& f) {
    for (int64_t i = 0; i < kRows; ++i) f(i, rows.data() + i * row_bytes(dtype, kCols));
  }
  static float float_at(const uint8_t* row, int64_t byte) {
    float value;
    std::memcpy(&value, row + byte, sizeof value);
    return value;
  }
  // Codes, and a scale for each run.
  void expect_rows(DType dtype, const std::vector<float>& x, const char* codes, const char* scales) const {
    const std::vector<uint8_t> rows = quantized(dtype, x), want = bytes(codes);
    const std::vector<float> want_scales = floats(scales);
    const RowLayout layout = row_layout(dtype, kCols);
    const int64_t width = kCols * row_format(dtype).bits / 8;
    each_row(rows, dtype, [&](int64_t i, const uint8_t* row) {
      for (int64_t k = 0; k < layout.count; ++k)
        ASSERT_EQ(float_at(row, layout.scales + 4 * k), want_scales[size_t(i * layout.count + k)]) << i << " " << k;
      for (int64_t k = 0; k < width; ++k) ASSERT_EQ(row[k], want[size_t(i * width + k)]) << i << " " << k;
    });
  }

  const SafetensorsFile file_ = SafetensorsFile::open(test::source_dir() / "tests/golden/row_formats.safetensors");
};

TEST_F(RowFormatsOfOthers, Nf4) { expect_rows(DType::nf4, floats("x"), "nf4.codes", "nf4.magnitudes"); }
TEST_F(RowFormatsOfOthers, Int8) { expect_rows(DType::int8, floats("half"), "int8.codes", "int8.scales"); }
TEST_F(RowFormatsOfOthers, Fp8) { expect_rows(DType::fp8, floats("x"), "fp8.codes", "fp8.scales"); }

TEST_F(RowFormatsOfOthers, Nf4Double) {
  const std::vector<uint8_t> rows = quantized(DType::nf4_double, floats("x")), codes = bytes("nested.codes"),
                             nf4 = bytes("nf4.codes");
  const std::vector<float> scales = floats("nested.scales"), values = floats("nested.values");
  const RowLayout layout = row_layout(DType::nf4_double, kCols);
  each_row(rows, DType::nf4_double, [&](int64_t i, const uint8_t* row) {
    EXPECT_EQ(float_at(row, layout.nested), floats("nested.mean")[0]);
    EXPECT_EQ(float_at(row, layout.nested + 8), scales[size_t(i * layout.count / kNestedRun)]);
    EXPECT_EQ(std::memcmp(row, &nf4[size_t(i * kCols / 2)], size_t(kCols / 2)), 0) << i;
    for (int64_t k = 0; k < layout.count; ++k)
      ASSERT_EQ(row[layout.scales + k], codes[size_t(i * layout.count + k)]) << i << " " << k;
    std::vector<float> got(static_cast<size_t>(kCols));
    decode_row(got.data(), row, DType::nf4_double, kCols);
    for (size_t k = 0; k < got.size(); ++k) {
      const float want = values[size_t(i * kCols) + k];
      EXPECT_NEAR(got[k], want, 1e-6f * std::abs(want)) << i << " " << k;
    }
  });
}

TEST_F(RowFormatsOfOthers, TheDynamicMap) {
  const std::vector<float> map = floats("map");
  for (size_t i = 0; i < map.size(); ++i) EXPECT_EQ(kSignedMap.values[i], map[i]) << i;
}

TEST_F(RowFormatsOfOthers, E4m3) {
  const std::vector<float> numbers = floats("numbers");
  const std::vector<uint8_t> codes = bytes("e4m3");
  for (size_t i = 0; i < numbers.size(); ++i) ASSERT_EQ(f32_to_e4m3(numbers[i]), codes[i]) << numbers[i];
}

}  // namespace
}  // namespace wick
