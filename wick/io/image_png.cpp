// PNG by libpng: read by its simplified interface, which keeps its longjmp to itself.

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

Pixels decode_png(std::string_view bytes, const ImageHeader& header, const std::string& source) {
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
  return {std::move(pixels), transparent};
}

namespace {

// Where a picture's bytes go: a string with room for them.
void append(png_structp png, png_bytep bytes, size_t count) {
  auto& out = *static_cast<std::string*>(png_get_io_ptr(png));
  if (out.capacity() - out.size() < count) png_error(png, "its file is too large");
  out.append(reinterpret_cast<const char*>(bytes), count);
}

// libpng's simplified interface compresses at zlib's level 6: this takes a third of the time and 7 % more bytes.
constexpr int kLevel = 3;

[[noreturn]] void give_up(png_structp png, png_const_charp) { png_longjmp(png, 1); }
void ignore(png_structp, png_const_charp) {}

// libpng leaves it by longjmp where something fails, so that nothing in it may need to be destroyed.
bool write_picture(png_structp png, png_infop info, const Image& image) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_IHDR(png, info, png_uint_32(image.width), png_uint_32(image.height), 8, PNG_COLOR_TYPE_RGB,
               PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_set_sRGB(png, info, PNG_sRGB_INTENT_PERCEPTUAL);
  png_set_compression_level(png, kLevel);
  png_write_info(png, info);
  for (int y = 0; y < image.height; ++y) png_write_row(png, image.rgb.data() + size_t(y) * size_t(image.width) * 3);
  png_write_end(png, info);
  return true;
}

}  // namespace

std::string encode_png(const Image& image, const ImageTexts& texts, const std::string& target) {
  std::string bytes;
  bytes.reserve(size_t(image.width) * size_t(image.height) * 4 + 65536);
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, give_up, ignore);
  png_infop info = png ? png_create_info_struct(png) : nullptr;
  if (png) png_set_write_fn(png, &bytes, append, nullptr);
  const bool is_written = info && write_picture(png, info, image);
  png_destroy_write_struct(&png, &info);
  check(is_written, "{}: cannot encode the image", target);
  constexpr size_t kFirst = 8 + 12 + 13;  // behind the signature and IHDR
  return bytes.insert(kFirst, png_texts(texts));
}

}  // namespace wick
