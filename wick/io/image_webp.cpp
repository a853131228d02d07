#include <webp/decode.h>

#include "wick/core/error.h"
#include "wick/io/image_codec.h"

namespace wick {

std::vector<uint8_t> decode_webp(std::string_view bytes, const ImageHeader& header, const std::string& source) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPDecoderConfig config;
  check(WebPInitDecoderConfig(&config) != 0, "{}: the installed libwebp is not the one Wick was built with", source);
  const VP8StatusCode readable = WebPGetFeatures(data, bytes.size(), &config.input);
  check(readable == VP8_STATUS_OK, "{}: the WebP cannot be decoded (libwebp status {})", source, int(readable));
  check(config.input.width == header.width && config.input.height == header.height && !config.input.has_animation,
        "{}: the WebP is damaged: it has two sizes", source);

  const size_t row_bytes = size_t(header.width) * (config.input.has_alpha ? 4 : 3);
  std::vector<uint8_t> pixels(row_bytes * size_t(header.height));
  config.output.colorspace = config.input.has_alpha ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {pixels.data(), int(row_bytes), pixels.size()};
  const VP8StatusCode decoded = WebPDecode(data, bytes.size(), &config);
  WebPFreeDecBuffer(&config.output);
  check(decoded == VP8_STATUS_OK, "{}: the WebP is truncated or damaged (libwebp status {})", source, int(decoded));
  return config.input.has_alpha ? composite_on_white(pixels) : pixels;
}

}  // namespace wick
