// GIF, BMP and TIFF: pictures that Pillow wrote become the pixels that Pillow reads of them, and damage ends in one
// line.
#include <gtest/gtest.h>

#include <fstream>

#include "io/encode.h"
#include "io/files.h"
#include "source_dir.h"
#include "wick/io/image.h"
#include "wick/io/sha256.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kCorpus = test::source_dir() / "fuzz/corpus/image";

Image decode_picture(const std::string& bytes) { return decode_image(bytes, "picture"); }
std::string corpus(const char* name) { return read_plain(kCorpus / name); }

std::string le(uint32_t value, int bytes) { return number(value, bytes, /*little=*/true); }

// tools/image_formats/run.py made the files and the list.
TEST(ImageFormats, PixelsAreThoseOfPillow) {
  std::ifstream list(test::source_dir() / "tests/golden/image_formats.txt");
  size_t count = 0;
  std::string name, hash;
  for (int width = 0, height = 0; list >> name >> width >> height >> hash; ++count) {
    SCOPED_TRACE(name);
    const Image image = read_image(kCorpus / name);
    EXPECT_EQ(image.width, width);
    EXPECT_EQ(image.height, height);
    EXPECT_EQ(sha256_hex({reinterpret_cast<const char*>(image.rgb.data()), image.rgb.size()}), hash);
    const ImageInfo info = probe_image(kCorpus / name);
    EXPECT_EQ(std::pair(info.width, info.height), std::pair(width, height));
  }
  EXPECT_EQ(count, 16u);
}

TEST(ImageFormats, EveryTruncationIsAnError) {
  for (const auto& [name, rest] :
       {std::pair("rgb.bmp", 3), {"p.bmp", 1}, {"transparent.gif", 4}, {"interlaced.gif", 4}}) {
    const std::string bytes = corpus(name);
    for (size_t size = 0; size + size_t(rest) < bytes.size(); ++size) {
      SCOPED_TRACE(fmt::format("{} {}", name, size));
      expect_error([&] { decode_picture(bytes.substr(0, size)); }, {"picture: "});
    }
  }
  // The directory of these lies at the end, or a strip does.
  for (const char* name : {"strips.tif", "p_tiff_lzw.tif", "cmyk_packbits.tif", "1_group4.tif"}) {
    const std::string bytes = corpus(name);
    for (size_t size = 0; size < bytes.size() / 2; ++size) {
      SCOPED_TRACE(fmt::format("{} {}", name, size));
      expect_error([&] { decode_picture(bytes.substr(0, size)); }, {"picture: "});
    }
  }
}

TEST(ImageFormats, SizesAreCheckedBeforeAnythingIsDecoded) {
  std::string bmp = corpus("rgb.bmp"), gif = corpus("transparent.gif");
  const auto sized = [](std::string bytes, size_t at, int width, uint32_t size) {
    return bytes.replace(at, size_t(width), le(size, width));
  };
  expect_error([&] { decode_picture(sized(bmp, 18, 4, 60'000'000)); }, {"picture: ", "60000000x11", "more than"});
  expect_error([&] { decode_picture(sized(bmp, 18, 4, 0)); }, {"picture: ", "0x11"});
  expect_error([&] { decode_picture(sized(bmp, 18, 4, 0xFFFFFFFF)); }, {"picture: ", "-1x11"});
  expect_error([&] { decode_picture(sized(bmp, 18, 4, 21)); }, {"picture: the BMP is truncated"});
  expect_error([&] { decode_picture(sized(bmp, 28, 2, 7)); }, {"picture: a BMP of 7 bits", "save it as PNG"});
  expect_error([&] { decode_picture(sized(bmp, 30, 4, 4)); }, {"picture: a BMP", "compression 4"});
  expect_error([&] { decode_picture(sized(sized(gif, 6, 2, 65535), 8, 2, 65535)); }, {"65535x65535", "more than"});
}

std::string tag(uint16_t key, uint16_t type, uint32_t value) {
  return le(key, 2) + le(type, 2) + le(1, 4) + le(value, 4);
}

// A picture of 2 x 1 pixels without compression; `more` tags, which are sorted behind the first ones.
std::string small_tiff(uint32_t width, uint32_t height, uint16_t photometric, uint16_t bits,
                       const std::string& samples) {
  constexpr uint32_t kTags = 7, kData = 8 + 2 + 12 * kTags + 4;
  return "II*" + le(0, 1) + le(8, 4) + le(kTags, 2) + tag(256, 4, width) + tag(257, 4, height) + tag(258, 3, bits) +
         tag(259, 3, 1) + tag(262, 3, photometric) + tag(273, 4, kData) + tag(279, 4, uint32_t(samples.size())) +
         le(0, 4) + samples;
}

TEST(ImageFormats, DamagedTiffsEndInOneLine) {
  EXPECT_EQ(decode_picture(small_tiff(2, 1, 1, 8, "\x10\x80")).rgb, (Samples{16, 16, 16, 128, 128, 128}));
  EXPECT_EQ(decode_picture(small_tiff(2, 1, 0, 8, "\x10\x80")).rgb, (Samples{239, 239, 239, 127, 127, 127}));
  EXPECT_EQ(decode_picture(small_tiff(2, 1, 1, 4, "\x1f")).rgb, (Samples{17, 17, 17, 255, 255, 255}));
  EXPECT_EQ(decode_picture(small_tiff(1, 1, 1, 16, "\x34\x12")).rgb, (Samples{18, 18, 18}));
  expect_error([] { decode_picture(small_tiff(2, 1, 1, 8, "\x10")); }, {"picture: the TIFF is truncated or damaged"});
  expect_error([] { decode_picture(small_tiff(0, 1, 1, 8, "")); }, {"picture: the image is damaged: its size is 0x1"});
  expect_error([] { decode_picture(small_tiff(4'000'000'000, 4'000'000'000, 1, 8, "")); }, {"picture: ", "more than"});
  expect_error([] { decode_picture(small_tiff(2, 1, 1, 32, "12345678")); }, {"picture: a TIFF of 1 x 32 bits", "PNG"});
  expect_error([] { decode_picture(small_tiff(2, 1, 8, 8, "12")); }, {"picture: a TIFF", "colour space 8"});
  expect_error([] { decode_picture(small_tiff(2, 1, 3, 8, "12")); },
               {"picture: the TIFF is truncated or damaged: it has no palette"});
}

TEST(ImageFormats, RunLengthsOfBitmapsAreRead) {
  // 3 x 2: a run of two, then a literal of one; the end of a row; a jump over one pixel, then a run of one.
  const std::string palette = std::string("\0\0\0\0", 4) + std::string("\1\2\3\0", 4) + std::string("\4\5\6\0", 4);
  const std::string runs("\2\1\1\2\0\0\0\2\1\0\1\2\0\1", 14);
  const std::string header =
      le(40, 4) + le(3, 4) + le(2, 4) + le(1, 2) + le(8, 2) + le(1, 4) + le(0, 12) + le(3, 4) + le(0, 4);
  const std::string bmp = "BM" + le(0, 8) + le(14 + 40 + 12, 4) + header + palette + runs;
  const Samples black{0, 0, 0}, one{3, 2, 1}, two{6, 5, 4};
  Samples expected;
  for (const Samples& pixel : {black, two, black, one, one, two})
    expected.insert(expected.end(), pixel.begin(), pixel.end());
  EXPECT_EQ(decode_picture(bmp).rgb, expected);
  expect_error([&] { decode_picture(bmp.substr(0, bmp.size() - 3)); }, {"picture: the BMP is truncated"});
}

TEST(ImageFormats, CodesWithoutAMeaningAreErrors) {
  // A canvas of 1 x 1 with a palette of two, and codes of 3 bits: clear (4), then one that is not there yet (7).
  const std::string gif = "GIF89a" + le(1, 2) + le(1, 2) + std::string("\x80\0\0", 3) + std::string(6, '\1') + "," +
                          le(0, 8).replace(4, 4, le(1, 2) + le(1, 2)) + le(0, 1) + "\2";
  const auto coded = [&](uint32_t codes) { return gif + "\2" + le(codes, 2) + le(0, 1) + ";"; };
  EXPECT_EQ(decode_picture(coded(4 | 1 << 3 | 5 << 6)).rgb, (Samples{1, 1, 1}));
  expect_error([&] { decode_picture(coded(4 | 7 << 3)); }, {"picture: the GIF is damaged: a code has no meaning"});
  expect_error([&] { decode_picture(coded(4 | 5 << 3)); }, {"picture: the GIF is truncated"});
}

}  // namespace
}  // namespace wick
