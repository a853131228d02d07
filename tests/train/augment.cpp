// Pictures as samples show them, and the masks of their losses.
#include "wick/train/augment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "io/files.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// Each pixel tells where it is.
Image map_of(int width, int height) {
  Image image{width, height, {}};
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) image.rgb.insert(image.rgb.end(), {uint8_t(x), uint8_t(y), 7});
  return image;
}

class AugmentTest : public testing::Test {
 protected:
  Example example(int width, int height, Size bucket) {
    write_image(folder_ / "a.png", map_of(width, height));
    Example e{.image = folder_ / "a.png", .size = {width, height}};
    e.placement = {.bucket = bucket,
                   .scaled = {width, height},
                   .crop_left = (width - bucket.width) / 2,
                   .crop_top = (height - bucket.height) / 2};
    return e;
  }
  TemporaryDirectory folder_;
};

TEST_F(AugmentTest, AMirroredCropIsWhatTheMirrorShows) {
  const Example e = example(40, 32, {32, 32});
  const Image plain = load_image(e), other = load_image(e, {.mirrored = true, .crop_left = 3, .crop_top = 0});
  EXPECT_EQ(plain.rgb[0], 4) << "in the middle";
  ASSERT_EQ(other.width, 32);
  for (int x = 0; x < 32; ++x) EXPECT_EQ(other.rgb[size_t(3 * x)], 3 + 31 - x);
  EXPECT_EQ(other.rgb[3 * 32 * 9 + 1], 9) << "rows stay";
}

TEST_F(AugmentTest, LooksAreDrawnEvenly) {
  const Example e = example(35, 33, {32, 32});
  Rng rng(3, Stream::crop);
  constexpr int kDraws = 4000;
  int mirrored = 0, hues = 0, gammas = 0;
  std::set<std::pair<int64_t, int64_t>> crops;
  for (int i = 0; i < kDraws; ++i) {
    const uint64_t before = rng.position();
    const Look look = draw_look(e, {.flip = true, .color = true, .random_crop = true}, rng);
    EXPECT_EQ(rng.position() - before, 6u) << "whatever is drawn";
    mirrored += look.mirrored, hues += look.hue.has_value(), gammas += look.gamma.has_value();
    crops.insert({look.crop_left, look.crop_top});
    EXPECT_TRUE(!look.hue || !look.gamma);
    EXPECT_LE(std::abs(look.hue.value_or(0)), 16);
    EXPECT_LE(std::abs(look.gamma.value_or(1) - 1), 0.05);
  }
  const auto expect_share = [&](int count, double share) {
    EXPECT_NEAR(count, kDraws * share, 5 * std::sqrt(kDraws * share * (1 - share)));
  };
  expect_share(mirrored, 0.5), expect_share(hues, 1.0 / 6), expect_share(gammas, 1.0 / 6);
  EXPECT_EQ(crops.size(), 4u * 2u);
  const uint64_t before = rng.position();
  EXPECT_FALSE(draw_look(e, {}, rng).mirrored);
  EXPECT_EQ(rng.position(), before) << "nothing is drawn unless asked for";
}

TEST_F(AugmentTest, ColoursChangeAsTheyShould) {
  const auto turned = [](std::vector<uint8_t> rgb, double degrees) {
    Image image{1, 1, std::move(rgb)};
    turn_hue(image, degrees);
    return image.rgb;
  };
  using Rgb = std::vector<uint8_t>;
  EXPECT_EQ(turned({200, 40, 40}, 120), (Rgb{40, 200, 40}));
  EXPECT_EQ(turned({200, 40, 40}, -120), (Rgb{40, 40, 200}));
  EXPECT_EQ(turned({200, 40, 40}, 60), (Rgb{200, 200, 40}));
  EXPECT_EQ(turned({10, 90, 250}, 360), (Rgb{10, 90, 250}));
  EXPECT_EQ(turned({80, 80, 80}, 77), (Rgb{80, 80, 80}));
  EXPECT_EQ(turned({0, 0, 0}, 77), (Rgb{0, 0, 0}));
  Image grey{1, 1, {0, 128, 255}};
  apply_gamma(grey, 2);
  EXPECT_EQ(grey.rgb, (Rgb{0, 64, 255}));
}

TEST_F(AugmentTest, MasksAreMeansOfTheirPixels) {
  Example e = example(40, 32, {32, 32});
  Image mask = map_of(40, 32);
  for (size_t i = 0; i < mask.rgb.size(); i += 3) mask.rgb[i] = i / 3 % 40 < 20 ? 255 : 0;  // left half
  write_image(folder_ / "m.png", mask);
  e.mask = folder_ / "m.png";
  const Tensor means = load_mask(e, {.crop_left = 2}, 8);  // 18 of 32 columns are white
  ASSERT_EQ(means.shape(), (Shape{1, 4, 4, 1}));
  const std::vector<float> values = means.to_vector(), other = mirrored_mask(means).to_vector();
  EXPECT_EQ(std::vector<float>(values.begin(), values.begin() + 4), (std::vector<float>{1, 1, 0.25f, 0}));
  EXPECT_EQ(std::vector<float>(other.begin(), other.begin() + 4), (std::vector<float>{0, 0.25f, 1, 1}));
  EXPECT_EQ(load_mask(e, {.mirrored = true, .crop_left = 2}, 8).to_vector(), other) << "either way";
  e.mask = e.image;
  for (const float value : load_mask(e, {}, 8).to_vector()) EXPECT_EQ(value, 1) << "a picture without alpha is opaque";
  e.size = {40, 33};
  expect_error([&] { load_mask(e, {}, 8); }, {"a.png", "changed"});
}

}  // namespace
}  // namespace wick
