// Images: JPEG, PNG and WebP in, PNG out.
//
// Formats are told apart by content, not by name. Pixels are taken as sRGB (embedded ICC profiles are not applied),
// EXIF orientation is applied, and transparency is composited on white. The pixel cap is checked on the header, before
// anything is decoded, and a truncated or damaged file is an Error.
#pragma once

#include <cstdint>
#include <filesystem>
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
  std::string format;         // "JPEG", "PNG" or "WebP"
};

// Reads the headers only: an image that it accepts may still prove damaged when decoded.
ImageInfo probe_image(const std::filesystem::path& path, const ImageLimits& limits = {});
Image read_image(const std::filesystem::path& path, const ImageLimits& limits = {});
Image decode_image(std::string_view bytes, const std::string& source, const ImageLimits& limits = {});

void write_png(const std::filesystem::path& path, const Image& image);  // atomic

// Filters with Mitchell where it shrinks, Catmull-Rom where it grows. Works on the sRGB values as they are, not in
// linear light, as the models' training pictures were scaled. The aspect ratio is the caller's.
Image resize_image(const Image& image, int width, int height);
Image crop_image(const Image& image, int x, int y, int width, int height);  // throws Error if it does not lie inside

Tensor image_to_tensor(const Image& image);   // [H, W, 3] f32 in [-1, 1]
Image tensor_to_image(const Tensor& tensor);  // inverse, clamped; throws Error if a value is not finite

}  // namespace wick
