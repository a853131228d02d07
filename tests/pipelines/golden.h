// Results of diffusers, and our distance from them.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>

#include "source_dir.h"
#include "wick/io/safetensors.h"

namespace wick {

inline const std::filesystem::path kGolden = test::source_dir() / "tests/golden";

inline SafetensorsFile open_golden(const std::string& name) {
  return SafetensorsFile::open(kGolden / (name + ".safetensors"));
}

// max |found - expected| / max |expected|
inline double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  if (found.size() != expected.size()) return INFINITY;
  double error = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(double(found[i]) - expected[i]);
    error = std::isnan(difference) ? INFINITY : std::max(error, difference);
    largest = std::max(largest, std::abs(double(expected[i])));
  }
  return error / largest;
}

inline double relative_error(const Tensor& found, const Tensor& expected) {
  return relative_error(found.to_vector(), expected.to_vector());
}

}  // namespace wick
