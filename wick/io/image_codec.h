// The common interface of the image formats: a header that is read first, and a decoder that trusts only that.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

// The bytes of an image, in memory or in a file, read piece by piece.
struct ImageSource {
  std::string name;  // for errors
  uint64_t size = 0;
  std::function<size_t(uint64_t offset, void* data, size_t bytes)> read_at;

  std::vector<uint8_t> read(uint64_t offset, size_t bytes) const;  // throws Error if the file ends before
};

enum class ImageFormat { jpeg, png, webp };

struct ImageHeader {
  ImageFormat format;
  int64_t width = 0, height = 0;  // as stored
  int orientation = 1;            // EXIF, 1 to 8
};

ImageHeader read_image_header(const ImageSource& source);

// The orientation that an EXIF block (a TIFF header and its first directory) asks for; 1 where it says nothing sound.
int exif_orientation(std::span<const uint8_t> tiff);

// Each returns [height, width, 3] as stored, transparency composited on white, and throws Error where the data is
// damaged or not of the size that the header said.
std::vector<uint8_t> decode_jpeg(std::string_view bytes, const ImageHeader& header, const std::string& source);
std::vector<uint8_t> decode_png(std::string_view bytes, const ImageHeader& header, const std::string& source);
std::vector<uint8_t> decode_webp(std::string_view bytes, const ImageHeader& header, const std::string& source);

// Composites [n, 4] with straight alpha to [n, 3].
std::vector<uint8_t> composite_on_white(std::span<const uint8_t> rgba);

}  // namespace wick
