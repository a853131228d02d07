// Aspect-ratio buckets (NovelAI, 2022; Podell et al., 2023, appendix I): sizes of about the same area, so that a batch
// of pictures needs one size without cropping them all to a square.
#pragma once

#include <cstdint>
#include <vector>

namespace wick {

struct Size {
  int64_t width = 0, height = 0;
  bool operator==(const Size&) const = default;
  auto operator<=>(const Size&) const = default;
};

struct BucketOptions {
  int64_t resolution = 1024;           // a bucket has at most resolution² pixels
  int64_t step = 64;                   // sides are multiples of it
  int64_t min_side = 0, max_side = 0;  // of a bucket; 0: half and twice the resolution
  bool upscale = true;                 // else a small picture gets a bucket of its own size, rounded down to `step`

  int64_t shortest_side() const { return min_side > 0 ? min_side : resolution / 2; }
  int64_t longest_side() const { return max_side > 0 ? max_side : 2 * resolution; }
};

// A picture's resolutions, each with buckets of its own.
using Resolutions = std::vector<BucketOptions>;

// The way of a picture into its bucket: scaled until it covers the bucket, then cropped around its centre.
struct Placement {
  Size bucket, scaled;
  int64_t crop_left = 0, crop_top = 0;
};

// Sides from min_side to max_side, ordered by width, then height.
std::vector<Size> bucket_sizes(const BucketOptions& options);
// The bucket with the nearest aspect ratio (by its logarithm, so that width and height count alike), the larger of two.
// Throws Error if the picture must not be scaled up and is smaller than one step.
Placement place(Size picture, const std::vector<Size>& buckets, const BucketOptions& options);

}  // namespace wick
