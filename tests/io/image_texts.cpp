// The texts of images: round trips, files of other programs as bytes, and hostile ones.
#include <zlib.h>

#include "io/encode.h"
#include "io/files.h"
#include "wick/io/image.h"

namespace wick {
namespace {

const char* const kEndings[] = {"png", "jpg", "jpeg", "webp", "PNG", "WebP"};

// A gradient, which lossy formats keep.
Image gradient(int width, int height) {
  Image image{width, height, {}};
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (const int value : {255 * x / width, 255 * y / height, 128}) image.rgb.push_back(uint8_t(value));
  return image;
}

const ImageTexts kPlain = {{"parameters", "a cat\nNegative prompt: \xC3\xA9t\xC3\xA9\nSteps: 3"},
                           {"wick", "{\"a\": 1}"}};
const ImageTexts kWide = {{"parameters", "\xE7\x8C\xAB, \xF0\x9F\x98\xBA\xE2\x80\x8D\nline two\tSteps: 3"},
                          {"wick", "{\"a\": \"\xF0\x9F\x98\xBA\"}"}};

TEST(ImageTexts, EveryFormatKeepsThemBesideThePicture) {
  const TemporaryDirectory folder;
  const Image image = gradient(31, 17);
  for (const std::string ending : kEndings)
    for (const ImageTexts& texts : {ImageTexts{}, kPlain, kWide, ImageTexts{{"wick", ""}}}) {
      const auto path = folder / ("x." + ending);
      write_image(path, image, texts);
      EXPECT_EQ(read_image_texts(path), texts) << ending;
      const Image read = read_image(path);
      ASSERT_EQ(read.width, 31);
      ASSERT_EQ(read.height, 17);
      const int tolerance = ending == "png" || ending == "PNG" ? 0 : 12;  // of quality 95
      for (size_t i = 0; i < image.rgb.size(); ++i) ASSERT_NEAR(read.rgb[i], image.rgb[i], tolerance) << ending;
    }
  EXPECT_EQ(folder.entries(), std::size(kEndings));
}

TEST(ImageTexts, NamesThatAreNoImagesAreRefused) {
  const TemporaryDirectory folder;
  for (const char* name : {"x", "x.gif", "png", ".png", "x.png.txt"}) {
    EXPECT_FALSE(is_image_name(name)) << name;
    expect_error([&] { write_image(folder / name, gradient(2, 2)); }, {name, ".png, .jpg, .jpeg or .webp"});
  }
  EXPECT_EQ(folder.entries(), size_t{0});
}

TEST(ImageTexts, WhatAFormatCannotHoldIsToldBeforehand) {
  const std::string long_text(40'000, 'x');
  check_image_fits("x.webp", 16'383, 1, {{"parameters", long_text}});
  check_image_fits("x.jpg", 65'500, 1, {{"parameters", std::string(32'000, 'x')}});
  check_image_fits("x.png", 65'535, 1, {{"parameters", std::string(4'000'000, 'x')}});
  expect_error(
      [&] {
        check_image_fits("x.jpg", 8, 8, {{"parameters", long_text}});
      },
      {"x.jpg", "65527", "write a .png"});
  expect_error([&] { check_image_fits("x.webp", 8, 16'384); }, {"x.webp: ", "8x16384", "16383 pixels a side", ".png"});
  expect_error([&] { check_image_fits("x.jpg", 65'501, 8); }, {"x.jpg", "65500 pixels"});
  expect_error(
      [&] {
        check_image_fits("x.png", 8, 8, {{"wick", std::string(5'000'000, 'x')}});
      },
      {"x.png", "settings take"});
}

// Chunks and segments as other programs write them.
std::string chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  const auto sum = uint32_t(crc32(0, reinterpret_cast<const Bytef*>(body.data()), uInt(body.size())));
  return number(uint32_t(data.size()), 4, false) + body + number(sum, 4, false);
}

std::string packed(const std::string& text) {
  uLongf size = compressBound(uLong(text.size()));
  std::string bytes(size, '\0');
  compress(reinterpret_cast<Bytef*>(bytes.data()), &size, reinterpret_cast<const Bytef*>(text.data()),
           uLong(text.size()));
  return bytes.substr(0, size);
}

std::string nul(const std::string& text) { return text + '\0'; }

std::string png_with(const std::string& chunks, bool at_end = false) {
  std::string png = encode_png(Samples(12, 7), 2, 2);
  return png.insert(at_end ? png.size() - 12 : 33, chunks);
}

ImageTexts texts_in(const std::string& bytes) { return decode_image_texts(bytes, "image"); }

TEST(ImageTexts, EveryKindOfPngsTextIsRead) {
  const std::string international = nul("k") + std::string("\1\0", 2) + nul("de") + nul("titel");
  for (const bool at_end : {false, true}) {
    EXPECT_EQ(texts_in(png_with(chunk("tEXt", nul("a") + "b\xE9\n"), at_end)), (ImageTexts{{"a", "b\xC3\xA9\n"}}));
    EXPECT_EQ(texts_in(png_with(chunk("zTXt", nul("a") + '\0' + packed("b\xE9")), at_end)),
              (ImageTexts{{"a", "b\xC3\xA9"}}));
    EXPECT_EQ(texts_in(png_with(chunk("iTXt", international + packed("\xE7\x8C\xAB")), at_end)),
              (ImageTexts{{"k", "\xE7\x8C\xAB"}}));
  }
  EXPECT_EQ(texts_in(png_with(chunk("tEXt", nul("a") + "1") + chunk("tEXt", nul("a") + "2"))),
            (ImageTexts{{"a", "2"}}));
  EXPECT_EQ(texts_in(png_with("")), ImageTexts{});
}

TEST(ImageTexts, DamagedChunksAreErrors) {
  const std::string good = chunk("tEXt", nul("a") + "text");
  std::string flipped = good;
  flipped[11] ^= 1;
  const std::string header = nul("a") + '\0';
  for (const std::string& bad : {flipped, chunk("tEXt", "no keyword ends"), chunk("tEXt", ""), chunk("zTXt", nul("a")),
                                 chunk("zTXt", header + "x"), chunk("zTXt", nul("a") + '\1' + packed("x")),
                                 chunk("zTXt", header + packed(std::string(900, 'x')).substr(0, 12)),
                                 chunk("iTXt", nul("a")), chunk("iTXt", header + '\0' + "no language ends"),
                                 chunk("iTXt", header + std::string(3, '\0') + "\xFF not UTF-8")})
    expect_error([&] { texts_in(png_with(bad)); }, {"image: the PNG is damaged: its text"});
  const std::string whole = png_with(good);
  for (size_t size = 0; size + 12 < whole.size(); ++size)
    expect_error([&] { texts_in(whole.substr(0, size)); }, {"image: "});
}

// 5 MiB in 5 KB, and 60 MiB in 60 KB.
TEST(ImageTexts, BombsAreRefused) {
  const std::string bomb = packed(std::string(size_t{5} << 20, 'x')), large = packed(std::string(size_t{3} << 20, 'x'));
  expect_error([&] { texts_in(png_with(chunk("zTXt", nul("a") + '\0' + bomb))); }, {"longer than 4 MiB"});
  expect_error([&] { texts_in(png_with(chunk("iTXt", nul("a") + std::string("\1\0\0\0", 4) + bomb))); },
               {"longer than 4 MiB"});
  std::string many;
  for (int i = 0; i < 20; ++i) many += chunk("zTXt", nul("k" + std::to_string(i)) + '\0' + large);
  expect_error([&] { texts_in(png_with(many)); }, {"more than 16 MiB of text"});
  // A length that the file does not have.
  std::string lying = chunk("tEXt", nul("a") + "text");
  lying.replace(0, 4, "\x7F\xFF\xFF\xFF");
  expect_error([&] { texts_in(png_with(lying)); }, {"image: the image is truncated"});
}

// A first directory that points to an EXIF directory with one UserComment.
std::string exif_comment(const std::string& comment, bool little, uint32_t type = 7) {
  const auto n = [&](uint32_t value, int bytes) { return number(value, bytes, little); };
  return (little ? "II" : "MM") + n(42, 2) + n(8, 4) + n(1, 2) + n(0x8769, 2) + n(4, 2) + n(1, 4) + n(26, 4) + n(0, 4) +
         n(1, 2) + n(0x9286, 2) + n(type, 2) + n(uint32_t(comment.size()), 4) + n(44, 4) + n(0, 4) + comment;
}

std::string jpeg_with(const std::string& exif) { return encode_jpeg(Samples(192, 9), 8, 8, {.exif = exif}); }
std::string webp_with(const std::string& exif) { return with_exif(encode_webp(Samples(12, 9), 2, 2), 2, 2, exif); }

TEST(ImageTexts, CommentsAreReadInEveryEncoding) {
  const auto utf16 = [](const std::string& ascii, bool little) {
    std::string units;
    for (const char c : ascii) units += little ? std::string{c, '\0'} : std::string{'\0', c};
    return units;
  };
  const std::string unicode("UNICODE\0", 8), ascii("ASCII\0\0\0", 8), none(8, '\0');
  const ImageTexts expected{{"parameters", "a cat, Steps: 3"}};
  const std::string text = expected.at("parameters");
  for (const bool little : {false, true}) {
    std::vector<std::string> comments = {ascii + text, none + text, ascii + text + std::string(2, '\0')};
    for (const bool little_units : {false, true}) comments.push_back(unicode + utf16(text, little_units));
    comments.push_back(unicode + "\xFF\xFE" + utf16(text, true));
    for (const std::string& comment : comments) {
      EXPECT_EQ(texts_in(jpeg_with(exif_comment(comment, little))), expected);
      EXPECT_EQ(texts_in(webp_with(exif_comment(comment, little))), expected);
    }
  }
  EXPECT_EQ(texts_in(encode_png(Samples(12, 7), 2, 2, {.exif = exif_comment(ascii + text, false)})), expected);
  for (const uint32_t type : {1, 2, 7})  // Pillow's, exiftool's, the standard's
    EXPECT_EQ(texts_in(jpeg_with(exif_comment(ascii + text, true, type))), expected);
  // Halves of pairs.
  EXPECT_EQ(texts_in(jpeg_with(exif_comment(unicode + std::string("\0a\xD8\x3D\0b\xDE\x3A", 8), false))),
            (ImageTexts{{"parameters",
                         "a\xEF\xBF\xBD"
                         "b\xEF\xBF\xBD"}}));
}

TEST(ImageTexts, UnsoundExifHasNone) {
  const std::string sound = exif_comment(std::string("ASCII\0\0\0", 8) + "text", true);
  for (size_t size = 0; size < sound.size(); ++size)
    EXPECT_EQ(texts_in(webp_with(sound.substr(0, size))), ImageTexts{});
  std::vector<std::string> bad;
  for (const size_t at : {4, 18, 26, 32, 36}) {  // offsets, counts
    bad.push_back(sound);
    bad.back().replace(at, 4, "\xFF\xFF\xFF\xFF");
  }
  bad.push_back(exif_comment("short", true));
  bad.push_back(exif_comment(std::string("JIS\0\0\0\0\0", 8) + "text", true));
  bad.push_back(exif_comment(std::string("ASCII\0\0\0", 8) + "\xFF", true));
  bad.push_back(exif_comment(std::string("ASCII\0\0\0", 8) + "text", true, 12));
  for (const std::string& exif : bad) EXPECT_EQ(texts_in(jpeg_with(exif)), ImageTexts{});
  std::string self = sound;  // a directory within itself
  self.replace(18, 4, std::string("\x08\0\0\0", 4));
  EXPECT_EQ(texts_in(jpeg_with(self)), ImageTexts{});
}

TEST(ImageTexts, WhatIsNoImageIsNamed) {
  const TemporaryDirectory folder;
  write_plain(folder / "x.png", "hello, this is text");
  expect_error([&] { read_image_texts(folder / "x.png"); },
               {"x.png: expected a JPEG, PNG, WebP, GIF, BMP or TIFF image"});
  expect_error([&] { read_image_texts(folder / "none.png"); }, {"none.png: cannot open"});
}

}  // namespace
}  // namespace wick
