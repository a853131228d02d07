// Images: JPEG, PNG and WebP in and out, with the texts that they carry; GIF, BMP and TIFF in.
//
// Formats are told apart by content when they are read, by the name's ending when they are written. Pixels are taken as
// sRGB (embedded ICC profiles are not applied), EXIF orientation is applied, and transparency is composited on white.
// The pixel cap is checked on the header, before anything is decoded, and a truncated or damaged file is an Error. Of
// an animated WebP or GIF, and of a TIFF of several pages, the first frame is read. Of 16 bits a sample the upper 8
// count.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wick/core/tensor.h"

namespace wick {

struct Image {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3], 8-bit sRGB
};

struct ImageLimits {
  int64_t max_pixels = 100'000'000;
  int64_t max_side = 65'535;
};

struct ImageInfo {
  int width = 0, height = 0;  // after EXIF orientation, as read_image() returns it
  std::string format;         // "JPEG", "PNG", "WebP", "GIF", "BMP" or "TIFF"
};

// Reads the headers only: an image that it accepts may still prove damaged when decoded.
ImageInfo probe_image(const std::filesystem::path& path, const ImageLimits& limits = {});
Image read_image(const std::filesystem::path& path, const ImageLimits& limits = {});
// What the first bytes of a file say, whatever its name: an image that Wick reads, or one of another format ("an AVIF
// image"). Neither for other files, and for what cannot be opened or is no regular file.
struct ImageStart {
  bool is_read = false;
  std::string_view foreign = {};
};
ImageStart image_start(const std::filesystem::path& path);
Image read_alpha(const std::filesystem::path& path, const ImageLimits& limits = {});  // as grey; white: opaque
Image decode_image(std::string_view bytes, const std::string& source, const ImageLimits& limits = {});

// Texts that an image carries, by their keywords, in UTF-8. PNG has a chunk for each (tEXt if it is Latin-1, else iTXt;
// zTXt is read too). JPEG and WebP have EXIF, with two places: `parameters` is the UserComment, as A1111's web UI has
// it, and `wick` is the MakerNote.
using ImageTexts = std::map<std::string, std::string>;

// Reads the headers and texts only. Throws Error if a text is damaged, or longer than 4 MiB once it is unpacked; one of
// EXIF that is not sound is left out.
ImageTexts read_image_texts(const std::filesystem::path& path);
ImageTexts decode_image_texts(std::string_view bytes, const std::string& source);

inline constexpr const char* kReadImages = "a JPEG, PNG, WebP, GIF, BMP or TIFF image";
inline constexpr const char* kWrittenImages = ".png, .jpg, .jpeg or .webp";
bool is_image_name(const std::filesystem::path& path);  // ends so, whatever the case

// Writes the format of the name's ending: PNG; JPEG of quality 95 without subsampling; WebP of quality 95. Atomic.
// Throws Error for another name, and where check_image_fits() does.
void write_image(const std::filesystem::path& path, const Image& image, const ImageTexts& texts = {});
// Throws Error if the format of that name cannot hold an image of this size with these texts.
void check_image_fits(const std::filesystem::path& path, int64_t width, int64_t height, const ImageTexts& texts = {});

// Filters with Mitchell where it shrinks, Catmull-Rom where it grows. Works on the sRGB values as they are, not in
// linear light, as the models' training pictures were scaled. The aspect ratio is the caller's.
Image resize_image(const Image& image, int width, int height);
Image crop_image(const Image& image, int x, int y, int width, int height);  // throws Error if it does not lie inside

Image mirrored(Image image);  // left and right change places

// Its middle, scaled to be of that size.
Image middle_of_image(const Image& image, int width, int height);

Tensor image_to_tensor(const Image& image);   // [H, W, 3] f32 in [-1, 1]
Image tensor_to_image(const Tensor& tensor);  // inverse, clamped; throws Error if a value is not finite
Image values_to_image(std::span<const float> values, int64_t height, int64_t width);  // the same, of [H, W, 3]

}  // namespace wick
