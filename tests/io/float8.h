// Safetensors files with floats of 8 bits, which Wick reads and does not write, and the values of their codes by the
// formats' definition (OCP 8-bit floating point, 2023).
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/files.h"

namespace wick {

struct StoredEntry {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

inline std::string of_floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

inline void write_stored(const std::filesystem::path& path, const std::vector<StoredEntry>& entries,
                         const std::string& metadata = "{}") {
  std::string header = R"({"__metadata__":)" + metadata, data;
  for (const StoredEntry& e : entries) {
    std::string shape;
    for (const int64_t n : e.shape) shape += (shape.empty() ? "" : ",") + std::to_string(n);
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", e.name, e.dtype, shape,
                          data.size(), data.size() + e.bytes.size());
    data += e.bytes;
  }
  header += "}";
  const uint64_t length = header.size();
  write_plain(path, std::string(reinterpret_cast<const char*>(&length), 8) + header + data);
}

// The value of a code of a format with sign, `exponent` bits and `mantissa` bits.
inline float float8(int code, int exponent, int mantissa, bool infinities) {
  const int e = code >> mantissa & ((1 << exponent) - 1), m = code & ((1 << mantissa) - 1);
  const int bias = (1 << (exponent - 1)) - 1;
  const float sign = code & 0x80 ? -1.0f : 1.0f;
  const bool top = e == (1 << exponent) - 1;
  if (infinities && top) return m == 0 ? sign * INFINITY : NAN;
  if (!infinities && top && m == (1 << mantissa) - 1) return NAN;
  const double size =
      e == 0 ? std::ldexp(m, 1 - bias - mantissa) : std::ldexp(m + (1 << mantissa), e - bias - mantissa);
  return float(sign * size);
}

inline float e4m3(int code) { return float8(code, 4, 3, false); }
inline float e5m2(int code) { return float8(code, 5, 2, true); }

}  // namespace wick
