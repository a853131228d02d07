// Every image decoder, told apart by content, with a cap that keeps each run short, and the readers of texts. Only
// Error may come out of it.

#include <cstdlib>

#include "wick/core/error.h"
#include "wick/io/image.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const wick::ImageLimits limits{.max_pixels = 1 << 16, .max_side = 4096};
  try {
    const auto image = wick::decode_image({reinterpret_cast<const char*>(data), size}, "input", limits);
    if (image.rgb.size() != size_t(image.width) * size_t(image.height) * 3) std::abort();
  } catch (const wick::Error&) {
  }
  try {
    wick::decode_image_texts({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const wick::Error&) {
  }
  return 0;
}
