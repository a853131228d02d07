// The common interface of the image formats: a header that is read first, a decoder that trusts only that, an encoder.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wick/io/descriptor.h"
#include "wick/io/image.h"

namespace wick {

// The bytes of an image, in memory or in a file, read piece by piece.
struct ImageSource {
  std::string name;  // for errors
  uint64_t size = 0;
  std::function<size_t(uint64_t offset, void* data, size_t bytes)> read_at;

  static ImageSource of(std::string_view bytes, const std::string& name);
  static ImageSource of(const FileDescriptor& file);  // both are borrowed

  std::vector<uint8_t> read(uint64_t offset, size_t bytes) const;  // throws Error if the file ends before
};

enum class ImageFormat { jpeg, png, webp, gif, bmp, tiff };

struct ImageHeader {
  ImageFormat format;
  int64_t width = 0, height = 0;   // as stored
  std::vector<uint8_t> exif = {};  // the TIFF header and what follows it; empty if there is none
};

ImageHeader read_image_header(const ImageSource& source);
ImageHeader read_gif_header(const ImageSource& source);
ImageHeader read_bmp_header(const ImageSource& source);

// Calls `visit` for each chunk of a PNG: with its type, and where its data lie.
using PngVisitor = std::function<void(std::string_view type, uint64_t offset, size_t length)>;
void each_png_chunk(const ImageSource& source, const PngVisitor& visit);

// [height, width, 3], or 4 with straight alpha.
struct Pixels {
  std::vector<uint8_t> values;
  bool has_alpha = false;
};

// Each returns the pixels as stored, and throws Error where the data is damaged or not of the size that the header
// said.
Pixels decode_jpeg(std::string_view bytes, const ImageHeader& header, const std::string& source);
Pixels decode_png(std::string_view bytes, const ImageHeader& header, const std::string& source);
Pixels decode_webp(std::string_view bytes, const ImageHeader& header, const std::string& source);

Pixels decode_gif(std::string_view bytes, const ImageHeader& header, const std::string& source);
Pixels decode_bmp(std::string_view bytes, const ImageHeader& header, const std::string& source);
Pixels decode_tiff(std::string_view bytes, const ImageHeader& header, const std::string& source);

// Each returns a whole file, with texts that fit.
std::string encode_jpeg(const Image& image, const ImageTexts& texts, const std::string& target);
std::string encode_png(const Image& image, const ImageTexts& texts, const std::string& target);
std::string encode_webp(const Image& image, const ImageTexts& texts, const std::string& target);

// A PNG's chunks of these texts.
std::string png_texts(const ImageTexts& texts);
constexpr size_t kMaxText = size_t{4} << 20, kMaxTexts = size_t{16} << 20;  // bytes: one of a PNG, and all of them
constexpr size_t kMaxExif = size_t{1} << 20;

}  // namespace wick
