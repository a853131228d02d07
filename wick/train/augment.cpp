#include "wick/train/augment.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "wick/core/error.h"

namespace wick {
namespace {

// As kohya's AugHelper asks albumentations: a third of the samples, half of them by hue, half by gamma.
constexpr double kColoured = 1.0 / 3, kTurned = 0.5, kMostDegrees = 16, kLeastGamma = 0.95, kMostGamma = 1.05;

// A picture or mask on its way to the bucket.
Image placed(const Image& image, const Example& example, const Look& look) {
  const Placement& p = example.placement;
  const bool fits = p.scaled == Size{image.width, image.height};
  Image bucket = fits ? image : resize_image(image, int(p.scaled.width), int(p.scaled.height));
  if (p.bucket != p.scaled)
    bucket = crop_image(bucket, int(look.crop_left), int(look.crop_top), int(p.bucket.width), int(p.bucket.height));
  return look.mirrored ? mirrored(std::move(bucket)) : bucket;
}

void check_same_size(const Image& image, const Example& example, const std::filesystem::path& file) {
  check(image.width == example.size.width && image.height == example.size.height,
        "{}: the picture changed while it was in use", file.string());
}

}  // namespace

Look plain_look(const Example& example) {
  return {.crop_left = example.placement.crop_left, .crop_top = example.placement.crop_top};
}

Look draw_look(const Example& example, const Augmentation& augmentation, Rng& rng) {
  Look look = plain_look(example);
  if (augmentation.flip) look.mirrored = rng.uniform() < 0.5f;
  if (augmentation.random_crop) {
    const auto& [bucket, scaled, left, top] = example.placement;
    look.crop_left = int64_t(rng.below(uint64_t(scaled.width - bucket.width + 1)));
    look.crop_top = int64_t(rng.below(uint64_t(scaled.height - bucket.height + 1)));
  }
  if (augmentation.color) {
    const auto coloured = double(rng.uniform()), which = double(rng.uniform()), amount = double(rng.uniform());
    if (coloured >= kColoured) return look;
    if (which < kTurned)
      look.hue = kMostDegrees * (2 * amount - 1);
    else
      look.gamma = kLeastGamma + (kMostGamma - kLeastGamma) * amount;
  }
  return look;
}

Image load_image(const Example& example, const Look& look) {
  const Image image = readable_picture(example.image);
  check_same_size(image, example, example.image);
  Image seen = placed(image, example, look);
  if (look.hue) turn_hue(seen, *look.hue);
  if (look.gamma) apply_gamma(seen, *look.gamma);
  return seen;
}

Tensor load_mask(const Example& example, const Look& look, int64_t factor) {
  const bool is_alpha = example.mask == example.image;
  const Image image = is_alpha ? read_alpha(example.mask) : read_image(example.mask);
  check_same_size(image, example, example.mask);
  const Image mask = placed(image, example, look);
  const int64_t height = mask.height / factor, width = mask.width / factor;
  Tensor means = Tensor::empty({1, height, width, 1});
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      int64_t sum = 0;
      for (int64_t row = y * factor; row < (y + 1) * factor; ++row)
        for (int64_t column = x * factor; column < (x + 1) * factor; ++column)
          sum += mask.rgb[3 * size_t(row * mask.width + column)];
      means.data<float>()[y * width + x] = float(double(sum) / double(255 * factor * factor));
    }
  return means;
}

Tensor mirrored_mask(const Tensor& mask) {
  Tensor other = Tensor::empty(mask.shape());
  const int64_t height = mask.dim(1), width = mask.dim(2);
  for (int64_t y = 0; y < height; ++y)
    std::reverse_copy(mask.data<float>() + y * width, mask.data<float>() + (y + 1) * width,
                      other.data<float>() + y * width);
  return other;
}

// Value and chroma stay; the hue is a place on a hexagon (Smith, "Color gamut transform pairs", 1978).
void turn_hue(Image& image, double degrees) {
  for (size_t i = 0; i < image.rgb.size(); i += 3) {
    const double r = image.rgb[i], g = image.rgb[i + 1], b = image.rgb[i + 2];
    const double value = std::max({r, g, b}), chroma = value - std::min({r, g, b});
    if (chroma == 0) continue;
    double hue = value == r ? (g - b) / chroma : value == g ? 2 + (b - r) / chroma : 4 + (r - g) / chroma;
    hue = std::fmod(hue + degrees / 60 + 12, 6);
    const auto channel = [&](double shift) {  // of HSV, by shifts of 5, 3 and 1
      const double k = std::fmod(shift + hue, 6);
      return uint8_t(std::lround(value - chroma * std::clamp(std::min(k, 4 - k), 0.0, 1.0)));
    };
    image.rgb[i] = channel(5), image.rgb[i + 1] = channel(3), image.rgb[i + 2] = channel(1);
  }
}

void apply_gamma(Image& image, double exponent) {
  std::array<uint8_t, 256> table{};
  for (size_t v = 0; v < table.size(); ++v) table[v] = uint8_t(std::lround(255 * std::pow(double(v) / 255, exponent)));
  for (uint8_t& v : image.rgb) v = table[v];
}

}  // namespace wick
