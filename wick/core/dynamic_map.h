// The dynamic maps of 8-bit optimizer states (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022),
// as bitsandbytes' create_dynamic_map() makes them: 256 numbers of [-1, 1], or of [0, 1] for states that are never
// negative, in ascending order. Each decade from 1e-6 to 1 has the middles of equal parts, twice as many as the decade
// below; 0 and 1 come beside them. A code is a number's place in the map.
#pragma once

#include <algorithm>

namespace wick {

struct DynamicMap {
  float values[256];
  // Between values i and i + 1: a number has as many thresholds below it as its nearest value's code says.
  float thresholds[255];
};

constexpr DynamicMap dynamic_map(bool is_signed) {
  constexpr float kDecades[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1};
  // Boundaries of equal parts of [0.1, 1], from either end and rounded once, as torch.linspace has them.
  const auto boundary = [](int k, int parts) {
    const double step = double(1.0f - 0.1f) / parts;
    return float(k < (parts + 1) / 2 ? double(0.1f) + step * k : 1 - step * (parts - k));
  };
  DynamicMap map{};
  int count = 0;
  for (int i = 0; i < 7; ++i)
    for (int parts = 1 << (is_signed ? i : i + 1), k = 0; k < parts; ++k) {
      const float value = kDecades[i] * ((boundary(k, parts) + boundary(k + 1, parts)) / 2);
      map.values[count++] = value;
      if (is_signed) map.values[count++] = -value;
    }
  map.values[count++] = 0;
  map.values[count++] = 1;
  std::sort(map.values, map.values + count);
  for (int i = 0; i < 255; ++i) map.thresholds[i] = (map.values[i] + map.values[i + 1]) * 0.5f;
  return map;
}

inline constexpr DynamicMap kSignedMap = dynamic_map(true), kUnsignedMap = dynamic_map(false);

}  // namespace wick
