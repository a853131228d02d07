#include "wick/train/buckets.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "wick/core/error.h"

namespace wick {
namespace {

int64_t rounded_down(double side, int64_t step) { return int64_t(side / double(step)) * step; }

Size nearest(Size picture, const std::vector<Size>& buckets) {
  const auto distance = [&](Size b) {
    return std::abs(std::log(double(picture.width) * double(b.height) / (double(picture.height) * double(b.width))));
  };
  const Size* best = &buckets.front();
  for (const Size& b : buckets) {
    const double closer = distance(*best) - distance(b);
    const bool larger = b.width * b.height > best->width * best->height;
    if (closer > 1e-9 || (closer > -1e-9 && larger)) best = &b;
  }
  return *best;
}

// The picture's own size, reduced to the allowed area, with sides rounded down to steps.
Size without_upscaling(Size picture, const BucketOptions& options) {
  const double area = double(options.resolution) * double(options.resolution);
  const double pixels = double(picture.width) * double(picture.height);
  const double scale = std::min(1.0, std::sqrt(area / pixels));
  return {rounded_down(double(picture.width) * scale, options.step),
          rounded_down(double(picture.height) * scale, options.step)};
}

}  // namespace

std::vector<Size> bucket_sizes(const BucketOptions& options) {
  const int64_t area = options.resolution * options.resolution, step = options.step;
  const int64_t asked_least = options.shortest_side();
  const int64_t most = options.longest_side();
  const int64_t least = std::max(step, asked_least / step * step);
  const int64_t side = options.resolution / step * step;
  check_usage(side > 0, "--resolution: expected at least {}, the step of the buckets, found {}", step,
              options.resolution);

  std::set<Size> sizes{{side, side}};
  for (int64_t width = least; width <= most; width += step) {
    const int64_t height = std::min(most, area / width) / step * step;
    if (height < least) continue;
    sizes.insert({width, height});
    sizes.insert({height, width});
  }
  return {sizes.begin(), sizes.end()};
}

Placement place(Size picture, const std::vector<Size>& buckets, const BucketOptions& options) {
  Placement p;
  p.bucket = options.upscale ? nearest(picture, buckets) : without_upscaling(picture, options);
  check(p.bucket.width > 0 && p.bucket.height > 0,
        "{}x{} pixels are too few without upscaling: at least {}x{} are needed", picture.width, picture.height,
        options.step, options.step);
  const double scale =
      std::max(double(p.bucket.width) / double(picture.width), double(p.bucket.height) / double(picture.height));
  p.scaled = {std::max(p.bucket.width, int64_t(std::lround(double(picture.width) * scale))),
              std::max(p.bucket.height, int64_t(std::lround(double(picture.height) * scale)))};
  p.crop_left = (p.scaled.width - p.bucket.width) / 2;
  p.crop_top = (p.scaled.height - p.bucket.height) / 2;
  return p;
}

}  // namespace wick
