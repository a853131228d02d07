// Encoders for the image tests: by the formats' own libraries, with the options that real files come with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <jpeglib.h>
#include <png.h>
#include <webp/encode.h>

namespace wick {

using Samples = std::vector<uint8_t>;

inline std::string number(uint32_t value, int bytes, bool little) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += char(value >> 8 * (little ? i : bytes - 1 - i));
  return text;
}

// A TIFF header with one directory that holds a width and the orientation.
inline std::string exif_block(int orientation, bool little = true) {
  const auto n = [&](uint32_t value, int bytes) { return number(value, bytes, little); };
  const std::string width = n(0x0100, 2) + n(4, 2) + n(1, 4) + n(640, 4);
  const std::string turned = n(0x0112, 2) + n(3, 2) + n(1, 4) + n(uint32_t(orientation), 2) + n(0, 2);
  return (little ? "II" : "MM") + n(42, 2) + n(8, 4) + n(2, 2) + width + turned + n(0, 4);
}

struct JpegOptions {
  J_COLOR_SPACE samples = JCS_RGB, stored = JCS_YCbCr;
  bool progressive = false;
  std::string exif;
};

inline std::string encode_jpeg(const Samples& samples, int width, int height, const JpegOptions& options = {}) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = JDIMENSION(width);
  info.image_height = JDIMENSION(height);
  info.in_color_space = options.samples;
  info.input_components = options.samples == JCS_CMYK ? 4 : options.samples == JCS_GRAYSCALE ? 1 : 3;
  jpeg_set_defaults(&info);
  jpeg_set_colorspace(&info, options.stored);
  jpeg_set_quality(&info, 100, TRUE);
  for (int c = 0; c < info.num_components; ++c) info.comp_info[c].h_samp_factor = info.comp_info[c].v_samp_factor = 1;
  if (options.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  if (!options.exif.empty()) {
    const std::string segment = std::string("Exif\0\0", 6) + options.exif;
    jpeg_write_marker(&info, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(segment.data()), unsigned(segment.size()));
  }
  const size_t row_bytes = size_t(width) * size_t(info.input_components);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = const_cast<JSAMPROW>(samples.data() + info.next_scanline * row_bytes);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string encoded(reinterpret_cast<char*>(bytes), size);
  std::free(bytes);
  return encoded;
}

struct PngOptions {
  int color = PNG_COLOR_TYPE_RGB, depth = 8;
  bool interlaced = false;
  std::vector<png_color> palette;
  Samples palette_alpha;
  std::string exif;
};

// `samples` as PNG stores them: 16-bit big-endian, rows padded to bytes.
inline std::string encode_png(const Samples& samples, int width, int height, const PngOptions& options = {}) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::string encoded;
  const auto append = [](png_structp p, png_bytep data, size_t size) {
    static_cast<std::string*>(png_get_io_ptr(p))->append(reinterpret_cast<char*>(data), size);
  };
  png_set_write_fn(png, &encoded, append, nullptr);
  png_set_IHDR(png, info, png_uint_32(width), png_uint_32(height), options.depth, options.color,
               options.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (!options.palette.empty()) png_set_PLTE(png, info, options.palette.data(), int(options.palette.size()));
  if (!options.palette_alpha.empty())
    png_set_tRNS(png, info, options.palette_alpha.data(), int(options.palette_alpha.size()), nullptr);
  std::string exif = options.exif;
  if (!exif.empty()) png_set_eXIf_1(png, info, png_uint_32(exif.size()), reinterpret_cast<png_bytep>(exif.data()));
  std::vector<png_bytep> rows;
  const size_t row_bytes = samples.size() / size_t(height);
  for (int y = 0; y < height; ++y) rows.push_back(const_cast<png_bytep>(samples.data() + size_t(y) * row_bytes));
  png_write_info(png, info);
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return encoded;
}

// Lossless, of [height, width, 3] or, with alpha, [height, width, 4].
inline std::string encode_webp(const Samples& samples, int width, int height, bool alpha = false) {
  uint8_t* bytes = nullptr;
  const size_t size = alpha ? WebPEncodeLosslessRGBA(samples.data(), width, height, 4 * width, &bytes)
                            : WebPEncodeLosslessRGB(samples.data(), width, height, 3 * width, &bytes);
  std::string encoded(reinterpret_cast<char*>(bytes), size);
  WebPFree(bytes);
  return encoded;
}

// The same image in the extended layout, with an EXIF chunk behind it.
inline std::string with_exif(const std::string& webp, int width, int height, const std::string& exif) {
  const auto chunk = [](const std::string& type, const std::string& data) {
    return type + number(uint32_t(data.size()), 4, true) + data + std::string(data.size() % 2, '\0');
  };
  const std::string canvas = number(uint32_t(width - 1), 3, true) + number(uint32_t(height - 1), 3, true);
  const std::string body =
      "WEBP" + chunk("VP8X", std::string("\x08\0\0\0", 4) + canvas) + webp.substr(12) + chunk("EXIF", exif);
  return "RIFF" + number(uint32_t(body.size()), 4, true) + body;
}

}  // namespace wick
