// libjpeg reports errors by longjmp. The functions that it may leave that way own nothing: everything that needs a
// destructor lives in their callers.

#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include <jpeglib.h>

#include <jerror.h>

#include "wick/core/error.h"
#include "wick/io/exif.h"
#include "wick/io/image_codec.h"

namespace wick {
namespace {

// A progressive file may hold any number of scans over all its pixels; real ones have about ten.
constexpr int kMaxScans = 500;

// libjpeg's client_data.
struct JpegErrors {
  jpeg_error_mgr errors{};
  std::jmp_buf escape{};
  char message[JMSG_LENGTH_MAX] = {};
};

struct JpegDecoder : JpegErrors {
  jpeg_decompress_struct info{};
  jpeg_progress_mgr progress{};

  JpegDecoder() = default;
  ~JpegDecoder() { jpeg_destroy_decompress(&info); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
};

struct JpegEncoder : JpegErrors {
  jpeg_compress_struct info{};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;

  JpegEncoder() = default;
  ~JpegEncoder() {
    jpeg_destroy_compress(&info);
    std::free(bytes);
  }
  JpegEncoder(const JpegEncoder&) = delete;
  JpegEncoder& operator=(const JpegEncoder&) = delete;
};

[[noreturn]] void on_error(j_common_ptr info) {
  auto& errors = *static_cast<JpegErrors*>(info->client_data);
  info->err->format_message(info, errors.message);
  std::longjmp(errors.escape, 1);
}

// libjpeg only warns about missing data and fills it with gray. Other warnings are about sloppy but complete files.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
      on_error(info);
    default:
      return;
  }
}

void on_progress(j_common_ptr info) {
  auto& decoder = static_cast<JpegDecoder&>(*static_cast<JpegErrors*>(info->client_data));
  if (decoder.info.input_scan_number <= kMaxScans) return;
  std::snprintf(decoder.message, sizeof decoder.message, "more than %d scans", kMaxScans);
  std::longjmp(decoder.escape, 1);
}

bool read_header(JpegDecoder& decoder, std::string_view bytes) {
  decoder.info.err = jpeg_std_error(&decoder.errors);
  decoder.errors.error_exit = on_error;
  decoder.errors.emit_message = on_message;
  decoder.progress.progress_monitor = on_progress;
  decoder.info.client_data = static_cast<JpegErrors*>(&decoder);
  if (setjmp(decoder.escape)) return false;
  jpeg_create_decompress(&decoder.info);
  decoder.info.progress = &decoder.progress;
  jpeg_mem_src(&decoder.info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&decoder.info, TRUE);
  const bool four_inks = decoder.info.jpeg_color_space == JCS_CMYK || decoder.info.jpeg_color_space == JCS_YCCK;
  decoder.info.out_color_space = four_inks ? JCS_CMYK : JCS_RGB;
  return true;
}

bool read_pixels(JpegDecoder& decoder, uint8_t* pixels, size_t row_bytes) {
  if (setjmp(decoder.escape)) return false;
  jpeg_start_decompress(&decoder.info);
  while (decoder.info.output_scanline < decoder.info.output_height) {
    JSAMPROW row = pixels + decoder.info.output_scanline * row_bytes;
    jpeg_read_scanlines(&decoder.info, &row, 1);
  }
  jpeg_finish_decompress(&decoder.info);
  return true;
}

bool write_file(JpegEncoder& encoder, const Image& image, const std::string& exif) {
  jpeg_compress_struct& info = encoder.info;
  info.err = jpeg_std_error(&encoder.errors);
  encoder.errors.error_exit = on_error;
  info.client_data = static_cast<JpegErrors*>(&encoder);
  if (setjmp(encoder.escape)) return false;
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, &encoder.bytes, &encoder.size);
  info.image_width = JDIMENSION(image.width);
  info.image_height = JDIMENSION(image.height);
  info.in_color_space = JCS_RGB;
  info.input_components = 3;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  info.optimize_coding = TRUE;
  info.comp_info[0].h_samp_factor = info.comp_info[0].v_samp_factor = 1;  // as the colours have: none are left out
  jpeg_start_compress(&info, TRUE);
  if (!exif.empty())
    jpeg_write_marker(&info, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(exif.data()), unsigned(exif.size()));
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = const_cast<JSAMPROW>(image.rgb.data()) + size_t{3} * info.image_width * info.next_scanline;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

// Adobe's programs store ink inverted (0 is full ink), and readers expect it so.
std::vector<uint8_t> cmyk_to_rgb(const std::vector<uint8_t>& cmyk, bool inverted) {
  std::vector<uint8_t> rgb(cmyk.size() / 4 * 3);
  const auto light = [&](uint8_t ink) { return unsigned(inverted ? ink : 255 - ink); };
  for (size_t i = 0; i < cmyk.size() / 4; ++i)
    for (size_t c = 0; c < 3; ++c)
      rgb[3 * i + c] = uint8_t((light(cmyk[4 * i + c]) * light(cmyk[4 * i + 3]) + 127) / 255);
  return rgb;
}

}  // namespace

Pixels decode_jpeg(std::string_view bytes, const ImageHeader& header, const std::string& source) {
  JpegDecoder decoder;
  check(read_header(decoder, bytes), "{}: the JPEG cannot be decoded: {}", source, decoder.message);
  check(decoder.info.image_width == header.width && decoder.info.image_height == header.height,
        "{}: the JPEG is damaged: it has two sizes", source);
  const bool four_inks = decoder.info.out_color_space == JCS_CMYK;
  const size_t row_bytes = size_t(header.width) * (four_inks ? 4 : 3);
  std::vector<uint8_t> pixels(row_bytes * size_t(header.height));
  check(read_pixels(decoder, pixels.data(), row_bytes), "{}: the JPEG is truncated or damaged: {}", source,
        decoder.message);
  return {four_inks ? cmyk_to_rgb(pixels, decoder.info.saw_Adobe_marker) : std::move(pixels)};
}

std::string encode_jpeg(const Image& image, const ImageTexts& texts, const std::string& target) {
  const std::string exif = texts.empty() ? "" : std::string("Exif\0\0", 6) + exif_block_of(texts);
  JpegEncoder encoder;
  check(write_file(encoder, image, exif), "{}: cannot encode the image: {}", target, encoder.message);
  return {reinterpret_cast<const char*>(encoder.bytes), encoder.size};
}

}  // namespace wick
