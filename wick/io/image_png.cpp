// PNG by libpng's simplified interface, which keeps its longjmp to itself.

#include <png.h>

#include "wick/core/error.h"
#include "wick/io/image_codec.h"

namespace wick {
namespace {

struct PngImage : png_image {
  PngImage() : png_image{} { version = PNG_IMAGE_VERSION; }
  ~PngImage() { png_image_free(this); }
  PngImage(const PngImage&) = delete;
  PngImage& operator=(const PngImage&) = delete;
};

}  // namespace

std::vector<uint8_t> decode_png(std::string_view bytes, const ImageHeader& header, const std::string& source) {
  PngImage png;
  check(png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) != 0, "{}: the PNG cannot be decoded: {}",
        source, png.message);
  check(png.width == header.width && png.height == header.height, "{}: the PNG is damaged: it has two sizes", source);
  const bool transparent = (png.format & PNG_FORMAT_FLAG_ALPHA) != 0;
  png.format = transparent ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB;
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // else libpng takes 16 bits without a gAMA chunk for linear light
  std::vector<uint8_t> pixels(size_t(header.width) * size_t(header.height) * (transparent ? 4 : 3));
  check(png_image_finish_read(&png, nullptr, pixels.data(), 0, nullptr) != 0, "{}: the PNG is truncated or damaged: {}",
        source, png.message);
  return transparent ? composite_on_white(pixels) : pixels;
}

std::string encode_png(const Image& image, const ImageTexts& texts, const std::string& target) {
  PngImage png;
  png.width = png_uint_32(image.width);
  png.height = png_uint_32(image.height);
  png.format = PNG_FORMAT_RGB;
  std::string bytes(PNG_IMAGE_PNG_SIZE_MAX(png), '\0');
  png_alloc_size_t size = bytes.size();
  check(png_image_write_to_memory(&png, bytes.data(), &size, 0, image.rgb.data(), 0, nullptr) != 0,
        "{}: cannot encode the image: {}", target, png.message);
  bytes.resize(size);
  constexpr size_t kFirst = 8 + 12 + 13;  // behind the signature and IHDR
  return bytes.insert(kFirst, png_texts(texts));
}

}  // namespace wick
