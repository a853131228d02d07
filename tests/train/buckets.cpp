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

// Source: sd-scripts, make_bucket_resolutions() in library/model_util.py and BucketManager.select_bucket() in
// library/train_util.py, run on these sizes.
struct Chosen {
  Size picture, bucket, scaled;
};

void expect_chosen(const BucketOptions& options, const std::vector<Chosen>& all) {
  const auto buckets = bucket_sizes(options);
  for (const Chosen& row : all) {
    SCOPED_TRACE(row.picture.width);
    const Placement p = place(row.picture, buckets, options);
    EXPECT_EQ(p.bucket, row.bucket);
    EXPECT_EQ(p.scaled, row.scaled);
  }
}

TEST(Buckets, OfSidesThatDifferAreKohyas) {
  const BucketOptions high{.resolution = {1344, 1792}, .min_side = 256, .max_side = 2048};
  const auto sizes = bucket_sizes(high);
  EXPECT_EQ(sizes.size(), 45u);
  EXPECT_EQ(sizes.front(), (Size{256, 2048}));
  EXPECT_EQ(sizes.back(), (Size{2048, 1152}));
  int64_t sum = 0;
  for (const Size size : sizes) sum += 31 * size.width + 17 * size.height;
  EXPECT_EQ(sum, 3099648);
  expect_chosen(high, {{{1344, 1792}, {1344, 1792}, {1344, 1792}},
                       {{3000, 2000}, {1856, 1280}, {1920, 1280}},
                       {{900, 3100}, {576, 2048}, {595, 2048}},
                       {{1999, 1013}, {2048, 1024}, {2048, 1038}},
                       {{640, 480}, {1792, 1344}, {1792, 1344}}});
  const BucketOptions odd{.resolution = {512, 768}, .min_side = 256, .max_side = 1000};
  EXPECT_EQ(bucket_sizes(odd).size(), 19u) << "the longest side is rounded up to 1024";
  expect_chosen(odd, {{{900, 3100}, {320, 1024}, {320, 1102}}, {{1999, 1013}, {832, 448}, {884, 448}}});
}

TEST(Buckets, WithoutUpscalingAreKohyas) {
  expect_chosen({.resolution = {1344, 1792}, .upscale = false}, {{{3000, 2000}, {1792, 1216}, {1824, 1216}},
                                                                 {{900, 3100}, {832, 2880}, {836, 2880}},
                                                                 {{1999, 1013}, {1984, 960}, {1999, 1013}},
                                                                 {{640, 480}, {640, 448}, {640, 480}}});
  expect_chosen({.resolution = {512, 768}, .step = 32, .upscale = false},
                {{{1344, 1792}, {512, 672}, {512, 683}}, {{1999, 1013}, {800, 416}, {821, 416}}});
}

TEST(Buckets, OneIsTheResolutionItself) {
  const BucketOptions one{.resolution = {1000, 1304}, .one = true};
  EXPECT_EQ(bucket_sizes(one), (std::vector<Size>{{1000, 1304}}));
  const Placement p = place({500, 500}, bucket_sizes(one), one);
  EXPECT_EQ(p.scaled, (Size{1304, 1304}));
  EXPECT_EQ(p.crop_left, 152);
}

TEST(Resolution, IsReadAsWickAndKohyaSpellIt) {
  EXPECT_EQ(Resolution::read("1024"), Resolution(1024));
  EXPECT_EQ(Resolution::read("1344x1792"), Resolution(1344, 1792));
  EXPECT_EQ(Resolution::read("1344,1792"), Resolution(1344, 1792));
  EXPECT_EQ(Resolution(1344, 1792).text(), "1344x1792");
  EXPECT_EQ(Resolution(512, 512).text(), "512");
  for (const char* text : {"", "x", "512x", "x512", "512 768", "512,768,1024", "-512", "512.0"})
    EXPECT_FALSE(Resolution::read(text)) << text;
}

}  // namespace
}  // namespace wick
