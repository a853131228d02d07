#include "wick/io/image.h"

#include <array>
#include <cmath>
#include <limits>

#include "io/encode.h"
#include "io/files.h"
#include "source_dir.h"

namespace wick {
namespace {

using Pixel = std::array<uint8_t, 3>;
constexpr Pixel kRed{220, 30, 30}, kGreen{20, 200, 40}, kBlue{30, 30, 210}, kWhite{240, 240, 240};

Pixel pixel(const Image& image, int x, int y) {
  const size_t i = 3 * (size_t(y) * size_t(image.width) + size_t(x));
  return {image.rgb[i], image.rgb[i + 1], image.rgb[i + 2]};
}

void expect_near(const Pixel& found, const Pixel& expected, int tolerance, const std::string& what) {
  for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(found[c], expected[c], tolerance) << what << ", channel " << c;
}

// 16 wide, 8 high, one colour a quarter: red, green above blue, white.
constexpr int kWidth = 16, kHeight = 8;
Samples quarters() {
  Samples rgb;
  for (int y = 0; y < kHeight; ++y)
    for (int x = 0; x < kWidth; ++x)
      for (uint8_t value : y < kHeight / 2 ? (x < kWidth / 2 ? kRed : kGreen) : (x < kWidth / 2 ? kBlue : kWhite))
        rgb.push_back(value);
  return rgb;
}

// The quarters as seen with each EXIF orientation: top left, top right, bottom left, bottom right.
const std::array<std::array<Pixel, 4>, 8> kSeen = {{{kRed, kGreen, kBlue, kWhite},
                                                    {kGreen, kRed, kWhite, kBlue},
                                                    {kWhite, kBlue, kGreen, kRed},
                                                    {kBlue, kWhite, kRed, kGreen},
                                                    {kRed, kBlue, kGreen, kWhite},
                                                    {kBlue, kRed, kWhite, kGreen},
                                                    {kWhite, kGreen, kBlue, kRed},
                                                    {kGreen, kWhite, kRed, kBlue}}};

void expect_quarters(const Image& image, int orientation, int tolerance) {
  const bool turned = orientation >= 5;
  ASSERT_EQ(image.width, turned ? kHeight : kWidth);
  ASSERT_EQ(image.height, turned ? kWidth : kHeight);
  const int right = image.width - 1, bottom = image.height - 1;
  const auto& seen = kSeen[size_t(orientation - 1)];
  const std::string what = "orientation " + std::to_string(orientation);
  expect_near(pixel(image, 0, 0), seen[0], tolerance, what);
  expect_near(pixel(image, right, 0), seen[1], tolerance, what);
  expect_near(pixel(image, 0, bottom), seen[2], tolerance, what);
  expect_near(pixel(image, right, bottom), seen[3], tolerance, what);
}

Image decode(const std::string& bytes) { return decode_image(bytes, "image"); }

// Both functions must agree on the size.
void expect_probe(const std::string& bytes, int width, int height, const std::string& format) {
  TemporaryDirectory dir;
  write_plain(dir / "image.dat", bytes);
  const ImageInfo info = probe_image(dir / "image.dat");
  EXPECT_EQ(info.width, width);
  EXPECT_EQ(info.height, height);
  EXPECT_EQ(info.format, format);
  const Image image = read_image(dir / "image.dat");
  EXPECT_EQ(image.width, width);
  EXPECT_EQ(image.height, height);
}

TEST(Jpeg, AppliesEveryOrientation) {
  for (int orientation = 1; orientation <= 8; ++orientation)
    for (bool little : {true, false}) {
      const std::string bytes = encode_jpeg(quarters(), kWidth, kHeight, {.exif = exif_block(orientation, little)});
      expect_quarters(decode(bytes), orientation, 4);
      expect_probe(bytes, orientation < 5 ? kWidth : kHeight, orientation < 5 ? kHeight : kWidth, "JPEG");
    }
}

TEST(Jpeg, TakesUnsoundExifForNone) {
  const std::string sound = exif_block(6);
  std::string far = sound, many = sound;
  far.replace(4, 4, "\xff\xff\xff\xff");
  many.replace(8, 2, "\xff\xff");  // more entries than there is room for
  for (const std::string& exif : {exif_block(0), exif_block(9), far, std::string("II"), sound.substr(0, 12)})
    expect_quarters(decode(encode_jpeg(quarters(), kWidth, kHeight, {.exif = exif})), 1, 4);
  expect_quarters(decode(encode_jpeg(quarters(), kWidth, kHeight, {.exif = many})), 6, 4);
}

TEST(Jpeg, ReadsProgressiveGrayAndRgb) {
  expect_quarters(decode(encode_jpeg(quarters(), kWidth, kHeight, {.progressive = true})), 1, 4);
  expect_quarters(decode(encode_jpeg(quarters(), kWidth, kHeight, {.stored = JCS_RGB})), 1, 4);
  const Samples gray(64, 77);
  const Image image = decode(encode_jpeg(gray, 8, 8, {.samples = JCS_GRAYSCALE, .stored = JCS_GRAYSCALE}));
  expect_near(pixel(image, 3, 3), {77, 77, 77}, 1, "gray");
}

// libjpeg marks these files as Adobe's, so the inks are stored upside down.
TEST(Jpeg, ReadsFourInks) {
  Samples inks;
  for (int i = 0; i < 64; ++i) inks.insert(inks.end(), {200, 100, 50, 128});
  for (J_COLOR_SPACE stored : {JCS_CMYK, JCS_YCCK}) {
    const Image image = decode(encode_jpeg(inks, 8, 8, {.samples = JCS_CMYK, .stored = stored}));
    expect_near(pixel(image, 4, 4), {200 * 128 / 255, 100 * 128 / 255, 50 * 128 / 255}, 3, "four inks");
  }
}

TEST(Jpeg, EveryTruncationIsAnError) {
  for (bool progressive : {false, true}) {
    const std::string bytes =
        encode_jpeg(quarters(), kWidth, kHeight, {.progressive = progressive, .exif = exif_block(6)});
    for (size_t size = 0; size < bytes.size(); ++size)
      expect_error([&] { decode(bytes.substr(0, size)); }, {"image: "});
  }
}

TEST(Png, ReadsEveryDepthAndColour) {
  const Samples rgb = quarters();
  expect_quarters(decode(encode_png(rgb, kWidth, kHeight)), 1, 0);
  expect_quarters(decode(encode_png(rgb, kWidth, kHeight, {.interlaced = true})), 1, 0);

  Samples rgb16;
  for (uint8_t value : rgb) rgb16.insert(rgb16.end(), {value, value});  // v · 257
  expect_quarters(decode(encode_png(rgb16, kWidth, kHeight, {.depth = 16})), 1, 0);

  const Samples gray{0x1B};  // 0, 1, 2, 3 of 2 bits
  const Image levels = decode(encode_png(gray, 4, 1, {.color = PNG_COLOR_TYPE_GRAY, .depth = 2}));
  for (int x = 0; x < 4; ++x)
    expect_near(pixel(levels, x, 0), {uint8_t(85 * x), uint8_t(85 * x), uint8_t(85 * x)}, 0, "gray");
  const Image bits = decode(encode_png({0x40}, 2, 1, {.color = PNG_COLOR_TYPE_GRAY, .depth = 1}));
  expect_near(pixel(bits, 1, 0), {255, 255, 255}, 0, "one bit");
}

TEST(Png, ReadsPalettesAndCompositesOnWhite) {
  const std::vector<png_color> palette{{255, 0, 0}, {0, 0, 255}};
  const PngOptions opaque{.color = PNG_COLOR_TYPE_PALETTE, .palette = palette};
  const Image plain = decode(encode_png({0, 1}, 2, 1, opaque));
  expect_near(pixel(plain, 0, 0), {255, 0, 0}, 0, "palette");
  expect_near(pixel(plain, 1, 0), {0, 0, 255}, 0, "palette");
  PngOptions sheer = opaque;
  sheer.palette_alpha = {0, 128};
  const Image mixed = decode(encode_png({0, 1}, 2, 1, sheer));
  expect_near(pixel(mixed, 0, 0), {255, 255, 255}, 0, "tRNS");
  expect_near(pixel(mixed, 1, 0), {127, 127, 255}, 0, "tRNS");

  const Image alpha =
      decode(encode_png({100, 50, 0, 0, 100, 50, 0, 128, 100, 50, 0, 255}, 3, 1, {.color = PNG_COLOR_TYPE_RGB_ALPHA}));
  expect_near(pixel(alpha, 0, 0), {255, 255, 255}, 0, "alpha 0");
  expect_near(pixel(alpha, 1, 0), {177, 152, 127}, 0, "alpha 128");
  expect_near(pixel(alpha, 2, 0), {100, 50, 0}, 0, "alpha 255");
  const Image gray = decode(encode_png({0, 255, 0, 0}, 2, 1, {.color = PNG_COLOR_TYPE_GRAY_ALPHA}));
  expect_near(pixel(gray, 0, 0), {0, 0, 0}, 0, "gray and alpha");
  expect_near(pixel(gray, 1, 0), {255, 255, 255}, 0, "gray and alpha");
}

TEST(Png, AppliesOrientation) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const std::string bytes = encode_png(quarters(), kWidth, kHeight, {.exif = exif_block(orientation, false)});
    expect_quarters(decode(bytes), orientation, 0);
    expect_probe(bytes, orientation < 5 ? kWidth : kHeight, orientation < 5 ? kHeight : kWidth, "PNG");
  }
}

TEST(Png, TruncationAndDamageAreErrors) {
  const std::string bytes = encode_png(quarters(), kWidth, kHeight);
  for (size_t size = 0; size + 4 < bytes.size(); ++size)  // the checksum of the empty last chunk may be missing
    expect_error([&] { decode(bytes.substr(0, size)); }, {"image: "});
  std::string damaged = bytes;
  damaged[bytes.find("IDAT") + 10] ^= 1;
  expect_error([&] { decode(damaged); }, {"image: the PNG is truncated or damaged"});
}

// 100000 x 100000 in 33 bytes: 30 GB, if they are believed.
TEST(Png, RefusesABombBeforeItAllocates) {
  TemporaryDirectory dir;
  std::string bomb = encode_png({0, 0, 0}, 1, 1);
  bomb.replace(16, 8, number(100'000, 4, false) + number(100'000, 4, false));
  write_plain(dir / "bomb.png", bomb);
  expect_error([&] { probe_image(dir / "bomb.png"); }, {"bomb.png: the image is 100000x100000, more than"});
  expect_error([&] { read_image(dir / "bomb.png"); }, {"bomb.png: the image is 100000x100000, more than"});
  const std::string small = encode_png(quarters(), kWidth, kHeight);
  expect_error([&] { decode_image(small, "image", {.max_pixels = 127}); }, {"16x8, more than the 127 pixels"});
  EXPECT_EQ(decode_image(small, "image", {.max_pixels = 128}).width, 16);
  bomb.replace(16, 8, std::string(8, '\0'));
  expect_error([&] { decode(bomb); }, {"its size is 0x0"});
}

TEST(WebP, ReadsColourAlphaAndOrientation) {
  const std::string plain = encode_webp(quarters(), kWidth, kHeight);
  expect_quarters(decode(plain), 1, 0);
  expect_probe(plain, kWidth, kHeight, "WebP");
  const Image alpha = decode(encode_webp({100, 50, 0, 128, 100, 50, 0, 255}, 2, 1, true));
  expect_near(pixel(alpha, 0, 0), {177, 152, 127}, 0, "alpha 128");
  expect_near(pixel(alpha, 1, 0), {100, 50, 0}, 0, "alpha 255");
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const std::string bytes = with_exif(plain, kWidth, kHeight, exif_block(orientation));
    expect_quarters(decode(bytes), orientation, 0);
    expect_probe(bytes, orientation < 5 ? kWidth : kHeight, orientation < 5 ? kHeight : kWidth, "WebP");
  }
}

TEST(WebP, ReadsLossyFiles) {
  const Samples rgb = quarters();
  uint8_t* bytes = nullptr;
  const size_t size = WebPEncodeRGB(rgb.data(), kWidth, kHeight, 3 * kWidth, 100, &bytes);
  const std::string lossy(reinterpret_cast<char*>(bytes), size);
  WebPFree(bytes);
  expect_quarters(decode(lossy), 1, 25);
  expect_probe(lossy, kWidth, kHeight, "WebP");
}

// A frame of an animation: a still file, and its size and place (even numbers) on the canvas.
struct WebpFrame {
  std::string still;
  int x, y, width, height;
};

std::string animated_webp(const std::vector<WebpFrame>& frames, bool has_alpha) {
  const auto n = [](int value, int bytes) { return number(uint32_t(value), bytes, true); };
  const auto chunk = [&](const char* type, const std::string& data) {
    return type + n(int(data.size()), 4) + data + std::string(data.size() % 2, '\0');
  };
  std::string body = "WEBP" + chunk("VP8X", n(has_alpha ? 0x12 : 0x02, 4) + n(kWidth - 1, 3) + n(kHeight - 1, 3)) +
                     chunk("ANIM", n(0x7F0000FF, 4) + n(0, 2));
  for (const auto& [still, x, y, width, height] : frames)
    body += chunk("ANMF", n(x / 2, 3) + n(y / 2, 3) + n(width - 1, 3) + n(height - 1, 3) + n(100, 3) + n(0, 1) +
                              still.substr(12));
  return "RIFF" + n(int(body.size()), 4) + body;
}

TEST(WebP, OfAnAnimationTheFirstFrameIsRead) {
  const WebpFrame whole{encode_webp(quarters(), kWidth, kHeight), 0, 0, kWidth, kHeight},
      pixel_in_it{encode_webp({100, 50, 0, 128}, 1, 1, true), 2, 4, 1, 1};
  const std::string bytes = animated_webp({whole, pixel_in_it}, true);
  expect_quarters(decode(bytes), 1, 0);
  expect_probe(bytes, kWidth, kHeight, "WebP");
  const Image alpha = decode(animated_webp({pixel_in_it, whole}, true));
  expect_near(pixel(alpha, 2, 4), {177, 152, 127}, 0, "alpha 128");
  expect_near(pixel(alpha, 0, 0), {255, 255, 255}, 0, "free of the frame");
  const WebpFrame opaque{encode_webp({10, 20, 30}, 1, 1), 2, 4, 1, 1};
  const Image without_alpha = decode(animated_webp({opaque}, false));
  expect_near(pixel(without_alpha, 2, 4), {10, 20, 30}, 0, "opaque");
  expect_near(pixel(without_alpha, 0, 0), {0, 0, 0}, 0, "free of it, as in PIL");
  for (size_t size = 0; size < bytes.size(); ++size) expect_error([&] { decode(bytes.substr(0, size)); }, {"image: "});
  expect_error([&] { decode(animated_webp({}, false)); }, {"image: the WebP"});
}

TEST(WebP, TruncationAndMissingFramesAreErrors) {
  const std::string bytes = encode_webp(quarters(), kWidth, kHeight);
  for (size_t size = 0; size < bytes.size(); ++size) expect_error([&] { decode(bytes.substr(0, size)); }, {"image: "});
  std::string animated = with_exif(bytes, kWidth, kHeight, "");
  animated[20] |= 0x02;
  expect_error([&] { decode(animated); }, {"image: the WebP"});
}

TEST(ReadImage, NamesWhatIsNoImage) {
  TemporaryDirectory dir;
  const auto expect_format = [&](std::string_view bytes, std::string_view format) {
    write_plain(dir / "x.png", bytes);
    expect_error([&] { read_image(dir / "x.png"); },
                 {"x.png: expected a JPEG, PNG, WebP, GIF, BMP or TIFF image, found", format});
    expect_error([&] { probe_image(dir / "x.png"); }, {format});
  };
  expect_format("", "an empty file");
  expect_format("hello, this is text", "something else");
  expect_format("....ftypheic....", "a HEIF image; convert it to PNG");
  expect_format(std::string_view("\0\0\0\x1c"
                                 "ftypavif....",
                                 16),
                "an AVIF image");
  expect_format("RIFF....WAVEfmt ", "something else");
  expect_error([&] { read_image(dir / "missing.png"); }, {"missing.png: cannot open"});
  expect_error([&] { probe_image(dir.path()); }, {"expected a file, found a directory"});
}

TEST(WriteImage, RoundTrips) {
  TemporaryDirectory dir;
  const Image image{kWidth, kHeight, quarters()};
  write_image(dir / "out.png", image);
  EXPECT_EQ(read_image(dir / "out.png").rgb, image.rgb);
  EXPECT_EQ(dir.entries(), 1u);
  expect_error([&] { write_image(dir / "missing/out.png", image); }, {"missing/out.png: cannot write"});
  expect_error([&] { write_image(dir / "bad.png", {2, 2, Samples(3)}); }, {"bad.png: cannot write the image"});
}

TEST(ResizeImage, KeepsFlatColoursAndAveragesStripes) {
  const Image flat{64, 48, Samples(64 * 48 * 3, 123)};
  for (auto [width, height] : {std::pair{32, 24}, {17, 100}, {1, 1}, {200, 3}, {64, 48}}) {
    const Image resized = resize_image(flat, width, height);
    EXPECT_EQ(resized.rgb, Samples(size_t(width) * size_t(height) * 3, 123)) << width << "x" << height;
  }
  Image stripes{64, 64, {}};
  for (int i = 0; i < 64 * 64; ++i) stripes.rgb.insert(stripes.rgb.end(), 3, i % 2 ? 255 : 0);
  expect_near(pixel(resize_image(stripes, 8, 8), 4, 4), {128, 128, 128}, 2, "stripes");
}

TEST(ResizeImage, KeepsThePictureInPlace) {
  const Image small = resize_image({kWidth, kHeight, quarters()}, 8, 4);
  expect_near(pixel(small, 0, 0), kRed, 12, "top left");
  expect_near(pixel(small, 7, 0), kGreen, 12, "top right");
  expect_near(pixel(small, 0, 3), kBlue, 12, "bottom left");
  expect_near(pixel(small, 7, 3), kWhite, 12, "bottom right");
  expect_error([] { resize_image({1, 1, Samples(3)}, 0, 5); }, {"0x5 is not a size"});
  expect_error([] { resize_image({1, 1, Samples(3)}, 60'000, 60'000); }, {"60000x60000"});
}

TEST(CropImage, TakesTheWindow) {
  const Image image{kWidth, kHeight, quarters()};
  const Image cropped = crop_image(image, 7, 3, 2, 2);  // where the quarters meet
  EXPECT_EQ(pixel(cropped, 0, 0), kRed);
  EXPECT_EQ(pixel(cropped, 1, 0), kGreen);
  EXPECT_EQ(pixel(cropped, 0, 1), kBlue);
  EXPECT_EQ(pixel(cropped, 1, 1), kWhite);
  EXPECT_EQ(crop_image(image, 0, 0, kWidth, kHeight).rgb, image.rgb);
  for (auto [x, y, w, h] : {std::array{-1, 0, 2, 2}, {15, 0, 2, 2}, {0, 7, 2, 2}, {0, 0, 0, 1}, {1, 0, INT32_MAX, 1}})
    expect_error([&, x = x, y = y, w = w, h = h] { crop_image(image, x, y, w, h); }, {"does not lie inside 16x8"});
}

TEST(ImageTensor, RoundTripsEveryValue) {
  Image image{256, 1, {}};
  for (int v = 0; v < 256; ++v) image.rgb.insert(image.rgb.end(), 3, uint8_t(v));
  const Tensor tensor = image_to_tensor(image);
  EXPECT_EQ(tensor.shape(), (Shape{1, 256, 3}));
  EXPECT_FLOAT_EQ(tensor.data<float>()[0], -1.0f);
  EXPECT_FLOAT_EQ(tensor.data<float>()[255 * 3], 1.0f);
  EXPECT_EQ(tensor_to_image(tensor).rgb, image.rgb);
}

TEST(ImageTensor, ClampsAndRefusesWhatIsNotAnImage) {
  EXPECT_EQ(tensor_to_image(Tensor::of(std::vector<float>{-5, 0.0f, 7}, {1, 1, 3})).rgb, (Samples{0, 128, 255}));
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (float bad : {nan, infinity, -infinity})
    expect_error([&] { tensor_to_image(Tensor::of(std::vector<float>{0, bad, 0}, {1, 1, 3})); }, {"not finite"});
  expect_error([] { tensor_to_image(Tensor::of(std::vector<float>{0, 0}, {1, 2})); }, {"found [1, 2]"});
}

TEST(Image, AlphaIsReadAsGrey) {
  const TemporaryDirectory folder;
  write_image(folder / "opaque.png", {2, 1, {1, 2, 3, 4, 5, 6}});
  EXPECT_EQ(read_alpha(folder / "opaque.png").rgb, std::vector<uint8_t>(6, 255));
  const std::filesystem::path fox = test::source_dir() / "tests/golden/replay/data/foxes/a.png";
  const Image alpha = read_alpha(fox), colours = read_image(fox);
  ASSERT_EQ(alpha.rgb.size(), colours.rgb.size());
  for (size_t i = 0; i < alpha.rgb.size(); i += 3) {
    EXPECT_TRUE(alpha.rgb[i] == alpha.rgb[i + 1] && alpha.rgb[i] == alpha.rgb[i + 2]);
    EXPECT_GE(colours.rgb[i], 255 - alpha.rgb[i]) << "composited on white";
  }
  EXPECT_LT(*std::ranges::min_element(alpha.rgb), 200);
}

TEST(Image, MirroredImagesChangeSides) {
  const Image image{3, 2, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}};
  EXPECT_EQ(mirrored(image).rgb, (std::vector<uint8_t>{7, 8, 9, 4, 5, 6, 1, 2, 3, 16, 17, 18, 13, 14, 15, 10, 11, 12}));
  EXPECT_EQ(mirrored(mirrored(image)).rgb, image.rgb);
}

}  // namespace
}  // namespace wick
