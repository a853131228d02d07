// Pictures beside what a VAE of diffusers decodes.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "wick/io/image.h"
#include "wick/io/safetensors.h"

namespace wick {

// The largest distance of a picture's bytes from 255ths of that tensor [1, 3, H, W] in [-1, 1] of a golden; rounding
// alone is 0.5. Infinite for another size.
inline float distance_from(const std::filesystem::path& golden, const std::string& name, const Image& picture) {
  const Tensor decoded = SafetensorsFile::open(golden).load(name);
  if (decoded.shape() != Shape{1, 3, picture.height, picture.width}) return INFINITY;
  const std::vector<float> expected = decoded.to_vector();
  const auto pixels = size_t(picture.height * picture.width);
  float worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const float value = 255 * std::clamp(expected[i] / 2 + 0.5f, 0.0f, 1.0f);
    worst = std::max(worst, std::abs(value - float(picture.rgb[i % pixels * 3 + i / pixels])));
  }
  return worst;
}

}  // namespace wick
