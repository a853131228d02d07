// Aspect-ratio buckets (NovelAI, 2022; Podell et al., 2023, appendix I): sizes of about the same area, so that a batch
// of pictures needs one size without cropping them all to a square.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

struct Size {
  int64_t width = 0, height = 0;
  bool operator==(const Size&) const = default;
  auto operator<=>(const Size&) const = default;
};

// A size that pictures are trained at. A number is the side of a square.
struct Resolution : Size {
  Resolution(int64_t side = 0) : Size{side, side} {}
  Resolution(int64_t wide, int64_t high) : Size{wide, high} {}

  int64_t shorter() const { return std::min(width, height); }
  int64_t longer() const { return std::max(width, height); }
  std::string text() const;  // "1024" or "1344x1792"
  // Of such a text, or of "1344,1792", which kohya's scripts have. None of any other.
  static std::optional<Resolution> read(std::string_view text);
};

struct BucketOptions {
  Resolution resolution = 1024;        // a bucket has at most its pixels
  int64_t step = 64;                   // sides are multiples of it
  int64_t min_side = 0, max_side = 0;  // of a bucket; 0: half of the shorter and twice the longer side of `resolution`
  bool upscale = true;                 // else a small picture gets a bucket of its own size, rounded down to `step`
  bool one = false;                    // the resolution itself is the one bucket

  int64_t shortest_side() const {
    return one ? resolution.shorter() : min_side > 0 ? min_side : resolution.shorter() / 2;
  }
  int64_t longest_side() const { return one ? resolution.longer() : max_side > 0 ? max_side : 2 * resolution.longer(); }
};

// A picture's resolutions, each with buckets of its own.
using Resolutions = std::vector<BucketOptions>;

// The way of a picture into its bucket: scaled until it covers the bucket, then cropped around its centre.
struct Placement {
  Size bucket, scaled;
  int64_t crop_left = 0, crop_top = 0;
};

// The buckets, ordered by width, then height. Their sides are multiples of `step` from min_side (rounded down to one)
// to max_side (rounded up). Source: sd-scripts, make_bucket_resolutions() in library/model_util.py.
std::vector<Size> bucket_sizes(const BucketOptions& options);
// The bucket of the picture's own size, if there is one, or the first with the nearest ratio of width to height.
// Without `upscale` it is what remains of the picture's size, scaled down to the area if it has more. Throws Error if
// that is less than one step. Source: sd-scripts, BucketManager.select_bucket() in library/train_util.py.
Placement place(Size picture, const std::vector<Size>& buckets, const BucketOptions& options);

}  // namespace wick
