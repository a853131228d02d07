#include "wick/train/buckets.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "wick/core/error.h"

namespace wick {
namespace {

int64_t to_pixels(double side) { return int64_t(side + 0.5); }
int64_t to_step(int64_t side, int64_t step) { return side - side % step; }
double ratio(Size size) { return double(size.width) / double(size.height); }

Size nearest(Size picture, const std::vector<Size>& buckets) {
  if (std::ranges::find(buckets, picture) != buckets.end()) return picture;
  return *std::ranges::min_element(buckets, {}, [&](Size b) { return std::abs(ratio(b) - ratio(picture)); });
}

// What the picture becomes to cover the bucket.
Size covering(Size picture, Size bucket) {
  const double scale = ratio(picture) > ratio(bucket) ? double(bucket.height) / double(picture.height)
                                                      : double(bucket.width) / double(picture.width);
  return {to_pixels(double(picture.width) * scale), to_pixels(double(picture.height) * scale)};
}

// The picture, scaled down to the area if it has more. Then one side is a multiple of the step: the one that changes
// the ratio of the sides less.
Size scaled_down(Size picture, const BucketOptions& options) {
  const int64_t area = options.resolution.width * options.resolution.height, step = options.step;
  if (picture.width * picture.height <= area) return picture;
  const double aspect = ratio(picture), wide = std::sqrt(double(area) * aspect), high = double(area) / wide;
  const int64_t width = to_step(to_pixels(wide), step), height = to_step(to_pixels(high), step);
  const Size by_width{width, to_step(to_pixels(double(width) / aspect), step)};
  const Size by_height{to_step(to_pixels(double(height) * aspect), step), height};
  if (by_width.height > 0 &&
      (by_height.height == 0 || std::abs(ratio(by_width) - aspect) < std::abs(ratio(by_height) - aspect)))
    return {width, to_pixels(double(width) / aspect)};
  return {to_pixels(double(height) * aspect), height};
}

}  // namespace

std::string Resolution::text() const {
  return width == height ? fmt::format("{}", width) : fmt::format("{}x{}", width, height);
}

std::optional<Resolution> Resolution::read(std::string_view text) {
  const auto side = [](std::string_view digits) -> std::optional<int64_t> {
    int64_t value{};
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size() || value < 0) return {};
    return value;
  };
  const size_t between = text.find_first_of("x,");
  const auto width = side(text.substr(0, between));
  if (between == text.npos) return width ? std::optional(Resolution(*width)) : std::nullopt;
  const auto height = side(text.substr(between + 1));
  return width && height ? std::optional(Resolution(*width, *height)) : std::nullopt;
}

std::vector<Size> bucket_sizes(const BucketOptions& options) {
  if (options.one) return {options.resolution};
  const int64_t area = options.resolution.width * options.resolution.height, step = options.step;
  const int64_t most = (options.longest_side() + step - 1) / step * step;
  const int64_t least = std::max(step, to_step(options.shortest_side(), step));
  const int64_t side = to_step(int64_t(std::sqrt(double(area))), step);
  check_usage(side > 0, "--resolution: expected at least {}, the step of the buckets, found {}", step,
              options.resolution.text());

  std::set<Size> sizes{{side, side}};
  for (int64_t width = least; width <= most; width += step) {
    const int64_t height = std::min(most, to_step(area / width, step));
    if (height < least) continue;
    sizes.insert({width, height});
    sizes.insert({height, width});
  }
  return {sizes.begin(), sizes.end()};
}

Placement place(Size picture, const std::vector<Size>& buckets, const BucketOptions& options) {
  Placement p;
  if (options.upscale) {
    p.bucket = nearest(picture, buckets);
    p.scaled = covering(picture, p.bucket);
  } else {
    p.scaled = scaled_down(picture, options);
    p.bucket = {to_step(p.scaled.width, options.step), to_step(p.scaled.height, options.step)};
  }
  check(p.bucket.width > 0 && p.bucket.height > 0,
        "{}x{} pixels are too few without upscaling: at least {}x{} are needed", picture.width, picture.height,
        options.step, options.step);
  p.crop_left = (p.scaled.width - p.bucket.width) / 2;
  p.crop_top = (p.scaled.height - p.bucket.height) / 2;
  return p;
}

}  // namespace wick
