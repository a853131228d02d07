#include <webp/decode.h>
#include <webp/demux.h>
#include <webp/encode.h>

#include <memory>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/exif.h"
#include "wick/io/image_codec.h"

namespace wick {
namespace {

struct WebpEncoder {
  WebPConfig config;
  WebPPicture picture;
  WebPMemoryWriter writer;
  bool is_ready = WebPConfigInit(&config) != 0 && WebPPictureInit(&picture) != 0;

  WebpEncoder() { WebPMemoryWriterInit(&writer); }
  ~WebpEncoder() {
    if (is_ready) WebPPictureFree(&picture);
    WebPMemoryWriterClear(&writer);
  }
  WebpEncoder(const WebpEncoder&) = delete;
  WebpEncoder& operator=(const WebpEncoder&) = delete;
};

std::string little_endian(uint32_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += char(value >> 8 * i & 0xFF);
  return text;
}

std::string chunk(const char* type, const std::string& data) {
  return type + little_endian(uint32_t(data.size()), 4) + data + std::string(data.size() % 2, '\0');
}

// The simple file's chunk in the extended layout, with an EXIF chunk behind it (RFC 9649, section 2.7).
std::string with_exif(const std::string& simple, const Image& image, const std::string& exif) {
  constexpr uint32_t kHasExif = 8;
  const std::string canvas = little_endian(uint32_t(image.width - 1), 3) + little_endian(uint32_t(image.height - 1), 3);
  const std::string body =
      "WEBP" + chunk("VP8X", little_endian(kHasExif, 4) + canvas) + simple.substr(12) + chunk("EXIF", exif);
  return "RIFF" + little_endian(uint32_t(body.size()), 4) + body;
}

// On a canvas without a background, as other readers have it. Without alpha what the frame leaves free is black.
Pixels first_frame(std::string_view bytes, const ImageHeader& header, bool has_alpha, const std::string& source) {
  const WebPData data{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  const std::unique_ptr<WebPAnimDecoder, void (*)(WebPAnimDecoder*)> decoder(WebPAnimDecoderNew(&data, nullptr),
                                                                             WebPAnimDecoderDelete);
  uint8_t* canvas = nullptr;
  int milliseconds = 0;
  WebPAnimInfo info{};
  const bool is_decoded = decoder && WebPAnimDecoderGetInfo(decoder.get(), &info) != 0 &&
                          info.canvas_width == header.width && info.canvas_height == header.height &&
                          WebPAnimDecoderGetNext(decoder.get(), &canvas, &milliseconds) != 0;
  check(is_decoded, "{}: the WebP is truncated or damaged: it has no first frame", source);
  const size_t count = size_t(header.width) * size_t(header.height);
  if (has_alpha) return {{canvas, canvas + 4 * count}, true};
  std::vector<uint8_t> rgb(3 * count);
  for (size_t i = 0; i < rgb.size(); ++i) rgb[i] = canvas[i / 3 * 4 + i % 3];
  return {std::move(rgb), false};
}

}  // namespace

Pixels decode_webp(std::string_view bytes, const ImageHeader& header, const std::string& source) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPDecoderConfig config;
  check(WebPInitDecoderConfig(&config) != 0, "{}: the installed libwebp is not the one Wick was built with", source);
  const VP8StatusCode readable = WebPGetFeatures(data, bytes.size(), &config.input);
  check(readable == VP8_STATUS_OK, "{}: the WebP cannot be decoded (libwebp status {})", source, int(readable));
  check(config.input.width == header.width && config.input.height == header.height,
        "{}: the WebP is damaged: it has two sizes", source);
  if (config.input.has_animation) return first_frame(bytes, header, config.input.has_alpha != 0, source);

  const size_t row_bytes = size_t(header.width) * (config.input.has_alpha ? 4 : 3);
  std::vector<uint8_t> pixels(row_bytes * size_t(header.height));
  config.output.colorspace = config.input.has_alpha ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {pixels.data(), int(row_bytes), pixels.size()};
  const VP8StatusCode decoded = WebPDecode(data, bytes.size(), &config);
  WebPFreeDecBuffer(&config.output);
  check(decoded == VP8_STATUS_OK, "{}: the WebP is truncated or damaged (libwebp status {})", source, int(decoded));
  return {std::move(pixels), config.input.has_alpha != 0};
}

std::string encode_webp(const Image& image, const ImageTexts& texts, const std::string& target) {
  WebpEncoder encoder;
  check(encoder.is_ready, "{}: the installed libwebp is not the one Wick was built with", target);
  encoder.config.quality = 95;
  encoder.config.use_sharp_yuv = 1;  // colours have half the resolution, whatever the quality
  WebPPicture& picture = encoder.picture;
  picture.width = image.width;
  picture.height = image.height;
  picture.use_argb = 1;
  picture.writer = WebPMemoryWrite;
  picture.custom_ptr = &encoder.writer;
  const bool encoded = WebPPictureImportRGB(&picture, image.rgb.data(), 3 * image.width) != 0 &&
                       WebPEncode(&encoder.config, &picture) != 0;
  check(encoded, "{}: cannot encode the image (libwebp error {})", target, int(picture.error_code));
  const std::string simple(reinterpret_cast<const char*>(encoder.writer.mem), encoder.writer.size);
  return texts.empty() ? simple : with_exif(simple, image, exif_block_of(texts));
}

}  // namespace wick
