#include "wick/core/error.h"
#include "wick/io/image.h"

#define STB_IMAGE_RESIZE_IMPLEMENTATION
#define STB_IMAGE_RESIZE_STATIC
#include <stb/stb_image_resize.h>

namespace wick {

Image resize_image(const Image& image, int width, int height) {
  const ImageLimits limits;
  const bool sound = width > 0 && height > 0 && width <= limits.max_side && height <= limits.max_side &&
                     int64_t{width} * height <= limits.max_pixels;
  check(sound, "resize: {}x{} is not a size that an image may have", width, height);
  if (width == image.width && height == image.height) return image;
  Image resized{width, height, std::vector<uint8_t>(size_t(width) * size_t(height) * 3)};
  const int done = stbir_resize_uint8_generic(image.rgb.data(), image.width, image.height, 0, resized.rgb.data(), width,
                                              height, 0, 3, STBIR_ALPHA_CHANNEL_NONE, 0, STBIR_EDGE_CLAMP,
                                              STBIR_FILTER_DEFAULT, STBIR_COLORSPACE_LINEAR, nullptr);
  check(done != 0, "resize: no memory to make {}x{} of {}x{}", width, height, image.width, image.height);
  return resized;
}

}  // namespace wick
