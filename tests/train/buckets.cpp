// Bucket sizes, and a picture's placement.
#include "wick/train/buckets.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/files.h"

namespace wick {
namespace {

TEST(Buckets, CoverTheSizesOfSdxl) {
  const std::vector<Size> sizes = bucket_sizes({.resolution = 1024, .step = 64});
  for (const Size wanted :
       {Size{1024, 1024}, {896, 1152}, {1152, 896}, {832, 1216}, {768, 1344}, {640, 1600}, {512, 2048}, {2048, 512}})
    EXPECT_NE(std::find(sizes.begin(), sizes.end(), wanted), sizes.end()) << wanted.width << "x" << wanted.height;
  EXPECT_TRUE(std::is_sorted(sizes.begin(), sizes.end()));
  for (const Size s : sizes) {
    EXPECT_EQ(s.width % 64, 0);
    EXPECT_EQ(s.height % 64, 0);
    EXPECT_LE(s.width * s.height, 1024 * 1024);
    EXPECT_GE(std::min(s.width, s.height), 512);
    EXPECT_LE(std::max(s.width, s.height), 2048);
  }
}

TEST(Buckets, OfASmallModelAreSmall) {
  const std::vector<Size> sizes = bucket_sizes({.resolution = 128, .step = 32});
  EXPECT_EQ(sizes.front(), (Size{64, 192}));
  EXPECT_EQ(sizes.back(), (Size{256, 64}));
}

TEST(Buckets, APictureLandsInTheNearestAspectRatio) {
  const BucketOptions options{.resolution = 1024, .step = 64};
  const auto buckets = bucket_sizes(options);
  EXPECT_EQ(place({800, 800}, buckets, options).bucket, (Size{1024, 1024}));
  EXPECT_EQ(place({4000, 3000}, buckets, options).bucket, (Size{1152, 896}));
  EXPECT_EQ(place({3000, 4000}, buckets, options).bucket, (Size{896, 1152}));
  EXPECT_EQ(place({5000, 100}, buckets, options).bucket, (Size{2048, 512}));
}

TEST(Buckets, APictureIsScaledToCoverAndCroppedAroundItsCentre) {
  const BucketOptions options{.resolution = 128, .step = 32};
  const Placement p = place({240, 200}, bucket_sizes(options), options);
  EXPECT_EQ(p.bucket, (Size{128, 128}));
  EXPECT_EQ(p.scaled, (Size{154, 128}));
  EXPECT_EQ(p.crop_left, 13);
  EXPECT_EQ(p.crop_top, 0);
}

TEST(Buckets, WithoutUpscalingASmallPictureKeepsItsSize) {
  const BucketOptions options{.resolution = 1024, .step = 64, .upscale = false};
  const auto buckets = bucket_sizes(options);
  const Placement small = place({300, 200}, buckets, options);
  EXPECT_EQ(small.bucket, (Size{256, 192}));
  EXPECT_LE(small.scaled.width, 300);
  EXPECT_LE(small.scaled.height, 200);
  const Placement large = place({4096, 4096}, buckets, options);
  EXPECT_EQ(large.bucket, (Size{1024, 1024}));
  expect_error([&] { place({63, 500}, buckets, options); }, {"63x500", "64x64"});
}

}  // namespace
}  // namespace wick
