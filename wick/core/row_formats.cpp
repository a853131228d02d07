// Compiled without contraction to fused multiply-adds, since the encoders' bits are those of rounded products.
#include "wick/core/row_formats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "wick/core/dynamic_map.h"
#include "wick/core/error.h"

namespace wick {
namespace {

constexpr RowFormat kFormats[] = {  // from DType::fp8 on
    {8, 0, false}, {8, kFp8BlockRun, false}, {8, 0, false}, {4, kNf4Run, false}, {4, kNf4Run, true}, {8, 0, false}};

constexpr int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

uint8_t nf4_code(float x) {
  int code = 0;
  for (const float threshold : kNf4Map.thresholds) code += x > threshold;
  return uint8_t(code);
}

uint8_t nearest_code(float x) {
  const auto& between = kSignedMap.thresholds;
  return uint8_t(std::lower_bound(std::begin(between), std::end(between), x) - std::begin(between));
}

// NaN if there is one.
float largest_magnitude(const float* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::abs(x[i]);
    if (!(magnitude <= largest) && !std::isnan(largest)) largest = magnitude;
  }
  return largest;
}

float* scales_of(void* row, const RowLayout& layout) {
  return reinterpret_cast<float*>(static_cast<char*>(row) + layout.scales);
}
const float* scales_of(const void* row, const RowLayout& layout) {
  return reinterpret_cast<const float*>(static_cast<const char*>(row) + layout.scales);
}

// The scale of each run.
std::vector<float> read_scales(const void* row, const RowLayout& layout, bool nested) {
  const float* const plain = scales_of(row, layout);
  if (!nested) return {plain, plain + layout.count};
  const auto* const codes = static_cast<const uint8_t*>(row) + layout.scales;
  const auto* const shared = reinterpret_cast<const NestedScales*>(static_cast<const char*>(row) + layout.nested);
  const auto* const outer = reinterpret_cast<const float*>(shared + 1);
  std::vector<float> scales(size_t(layout.count));
  for (size_t i = 0; i < scales.size(); ++i)
    scales[i] = kSignedMap.values[codes[i]] * outer[(shared->first + i) / kNestedRun] + shared->mean;
  return scales;
}

void decode_run(float* y, const uint8_t* codes, DType dtype, float scale, int64_t n) {
  if (dtype == DType::int8) {
    for (int64_t i = 0; i < n; ++i) y[i] = float(int8_t(codes[i])) * scale * (1 / 127.0f);
  } else if (row_format(dtype).bits == 8) {
    for (int64_t i = 0; i < n; ++i) y[i] = scale * e4m3_to_f32(codes[i]);
  } else {
    float values[16];
    for (int code = 0; code < 16; ++code) values[code] = kNf4Map.values[code] * scale;
    for (int64_t i = 0; i < n / 2; ++i) {
      y[2 * i] = values[codes[i] >> 4];
      y[2 * i + 1] = values[codes[i] & 15];
    }
  }
}

void quantize_fp8(uint8_t* codes, float& scale, const float* x, int64_t n) {
  const float largest = largest_magnitude(x, n);
  scale = largest == 0 ? 1 : largest / 448;
  for (int64_t i = 0; i < n; ++i) codes[i] = f32_to_e4m3(x[i] / scale);
}

void quantize_int8(uint8_t* codes, float& scale, const float* x, int64_t n) {
  scale = largest_magnitude(x, n);
  const float inverse = scale > 0 ? 1 / scale * 127 : 0;  // PyTorch's 127.0 / scale
  for (int64_t i = 0; i < n; ++i) {
    const float code = std::nearbyint(x[i] * inverse);
    codes[i] = uint8_t(std::isfinite(code) ? int8_t(code) : 0);
  }
}

void quantize_nf4(uint8_t* codes, float& scale, const float* x, int64_t n) {
  scale = largest_magnitude(x, n);
  const float inverse = scale > 0 ? 1 / scale : 0;
  for (int64_t i = 0; i < n; i += 2)
    codes[i / 2] = uint8_t(nf4_code(x[i] * inverse) << 4 | nf4_code(x[i + 1] * inverse));
}

// The magnitudes of all rows, one after the other, to where the rows have room for them.
void nest_scales(char* rows, const std::vector<float>& magnitudes, const RowLayout& layout) {
  const auto [mean, codes, scales] = nested(magnitudes);
  for (int64_t first = 0; first < int64_t(codes.size()); first += layout.count, rows += layout.bytes) {
    NestedScales shared{.mean = mean, .first = uint32_t(first % kNestedRun)};
    char* const header = rows + layout.nested;
    std::memcpy(header, &shared, sizeof shared);
    const int64_t begin = first / kNestedRun, end = (first + layout.count + kNestedRun - 1) / kNestedRun;
    std::memcpy(header + sizeof shared, &scales[size_t(begin)], size_t(end - begin) * sizeof(float));
    std::memcpy(rows + layout.scales, &codes[size_t(first)], size_t(layout.count));
  }
}

}  // namespace

RowFormat row_format(DType dtype) {
  check(has_row_format(dtype), "{} has no rows of codes", name_of(dtype));
  return kFormats[size_t(dtype) - size_t(DType::fp8)];
}

RowLayout row_layout(DType dtype, int64_t cols) {
  const RowFormat format = row_format(dtype);
  check(format.run == 0 || cols % format.run == 0,
        "{} has a scale for each {} elements of a row: {} are not whole ones", name_of(dtype), format.run, cols);
  RowLayout layout{};
  layout.scales = rounded_up(cols * format.bits / 8, 4);
  layout.count = format.run == 0 ? 1 : cols / format.run;
  int64_t end = layout.scales + layout.count * (format.nested ? 1 : 4);
  if (format.nested) {
    layout.nested = rounded_up(end, 4);
    // A row that begins with the last of 256 magnitudes needs the most scales.
    end = layout.nested + int64_t(sizeof(NestedScales)) + 4 * ((layout.count + 2 * kNestedRun - 2) / kNestedRun);
  }
  layout.bytes = rounded_up(end, 16);
  return layout;
}

float e4m3_to_f32(uint8_t bits) {
  static const auto values = [] {
    std::array<float, 256> all{};
    for (size_t i = 0; i < all.size(); ++i) {
      const int exponent = int(i >> 3 & 15), mantissa = int(i & 7);
      const float size = (i & 0x7f) == 0x7f ? std::nanf("")
                         : exponent == 0    ? std::ldexp(float(mantissa), -9)
                                            : std::ldexp(float(8 + mantissa), exponent - 10);
      all[i] = i & 0x80 ? -size : size;
    }
    return all;
  }();
  return values[bits];
}

uint8_t f32_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = uint8_t(bits >> 24 & 0x80);
  const float magnitude = std::abs(value);
  if (std::isnan(value)) return uint8_t(sign | 0x7f);
  if (magnitude >= 448) return uint8_t(sign | 0x7e);
  if (magnitude < 0x1p-6f) return uint8_t(sign | uint8_t(std::nearbyint(magnitude * 512)));  // 8 is the least normal
  const uint32_t rounded = (bits & 0x7fffffffu) + 0x7ffffu + (bits >> 20 & 1);
  return uint8_t(sign | uint8_t((rounded >> 20) - (uint32_t{127 - 7} << 3)));
}

void decode_row(float* y, const void* row, DType dtype, int64_t cols) {
  const RowLayout layout = row_layout(dtype, cols);
  const RowFormat format = row_format(dtype);
  const std::vector<float> scales = read_scales(row, layout, format.nested);
  const int64_t run = format.run == 0 ? cols : format.run;
  for (int64_t r = 0; r < layout.count; ++r)
    decode_run(y + r * run, static_cast<const uint8_t*>(row) + r * run * format.bits / 8, dtype, scales[size_t(r)],
               run);
}

NestedMagnitudes nested(const std::vector<float>& magnitudes) {
  double sum = 0;
  for (const float magnitude : magnitudes) sum += double(magnitude);
  NestedMagnitudes all{.mean = float(sum / double(magnitudes.size()))};
  std::vector<float> away(magnitudes);
  for (float& magnitude : away) magnitude -= all.mean;
  for (size_t i = 0; i < away.size(); i += kNestedRun) {
    const size_t end = std::min(i + kNestedRun, away.size());
    const float scale = largest_magnitude(&away[i], int64_t(end - i));
    all.scales.push_back(scale);
    for (size_t k = i; k < end; ++k) all.codes.push_back(nearest_code(scale > 0 ? away[k] * (1 / scale) : 0));
  }
  return all;
}

void quantize_rows(void* to, DType dtype, const float* x, int64_t rows, int64_t cols) {
  const RowLayout layout = row_layout(dtype, cols);
  const RowFormat format = row_format(dtype);
  const int64_t run = format.run == 0 ? cols : format.run;
  auto* row = static_cast<char*>(to);
  std::vector<float> magnitudes(format.nested ? size_t(rows * layout.count) : 0);
  for (int64_t n = 0; n < rows; ++n, row += layout.bytes, x += cols) {
    std::memset(row, 0, size_t(layout.bytes));
    auto* const codes = reinterpret_cast<uint8_t*>(row);
    for (int64_t r = 0; r < layout.count; ++r) {
      float& scale = magnitudes.empty() ? scales_of(row, layout)[r] : magnitudes[size_t(n * layout.count + r)];
      if (dtype == DType::int8)
        quantize_int8(codes, scale, x, run);
      else if (format.bits == 8)
        quantize_fp8(codes + r * run, scale, x + r * run, run);
      else
        quantize_nf4(codes + r * run / 2, scale, x + r * run, run);
    }
  }
  if (!magnitudes.empty()) nest_scales(static_cast<char*>(to), magnitudes, layout);
}

}  // namespace wick
