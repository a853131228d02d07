// Optimizer states in 8 bits (OptimizerKind).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "wick/core/dynamic_map.h"

namespace wick {

// Up to 256 elements of a state.
struct CodedBlock {
  uint8_t* codes;
  float* magnitude;  // the largest of the elements', which the codes scale
  int64_t count;

  void decode(const DynamicMap& map, float* values) const {
    for (int64_t i = 0; i < count; ++i) values[i] = map.values[codes[i]] * *magnitude;
  }

  // Each value becomes the nearest in the map; a negative one that would become zero stays negative.
  void encode(const DynamicMap& map, const float* values) const {
    float largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(values[i]));
    *magnitude = largest;
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t code = nearest(map, largest > 0 ? values[i] / largest : 0);
      codes[i] = uint8_t(code - (values[i] < 0 && map.values[code] == 0 && code > 0));
    }
  }

 private:
  // The number of thresholds below x.
  static uint8_t nearest(const DynamicMap& map, float x) {
    uint8_t code = 0;
    for (int step = 128; step > 0; step /= 2)
      if (x > map.thresholds[code + step - 1]) code = uint8_t(code + step);
    return code;
  }
};

}  // namespace wick
