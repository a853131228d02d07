// Size and EXIF block from the first bytes and the chunk lists, without decoding.
//
// JPEG: ITU-T T.81 annex B. PNG: W3C PNG 3rd edition. WebP: RFC 9649. TIFF: Adobe, "TIFF, Revision 6.0", section 2.

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/image_codec.h"

namespace wick {
namespace {

uint32_t big_endian(const uint8_t* p, int bytes) {
  uint32_t value = 0;
  for (int i = 0; i < bytes; ++i) value = value << 8 | p[i];
  return value;
}

uint32_t little_endian(const uint8_t* p, int bytes) {
  uint32_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | p[i];
  return value;
}

std::string_view text_of(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// An EXIF block as JPEG wraps it, and as some writers wrap it in WebP too.
std::vector<uint8_t> without_exif_prefix(std::vector<uint8_t> bytes) {
  if (text_of(bytes).starts_with(std::string_view("Exif\0\0", 6))) bytes.erase(bytes.begin(), bytes.begin() + 6);
  return bytes;
}

bool is_start_of_frame(uint8_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

ImageHeader read_jpeg_header(const ImageSource& source) {
  ImageHeader header{ImageFormat::jpeg};
  bool seen_exif = false;
  for (uint64_t offset = 2;;) {
    const auto start = source.read(offset, 2);
    const uint8_t marker = start[1];
    check(start[0] == 0xFF, "{}: the JPEG is damaged: expected a marker at byte {}", source.name, offset);
    if (marker == 0xFF) {  // any number of fill bytes may stand before a marker
      ++offset;
      continue;
    }
    if (marker == 0xDA || marker == 0xD9) break;
    const size_t length = big_endian(source.read(offset + 2, 2).data(), 2);
    check(length >= 2, "{}: the JPEG is damaged: an empty segment at byte {}", source.name, offset);
    if (is_start_of_frame(marker)) {
      const auto frame = source.read(offset + 4, 5);  // precision, height, width
      header.height = big_endian(&frame[1], 2);
      header.width = big_endian(&frame[3], 2);
    } else if (marker == 0xE1 && !seen_exif && length > 8) {
      auto exif = without_exif_prefix(source.read(offset + 4, length - 2));
      seen_exif = exif.size() < length - 2;  // else it is XMP
      if (seen_exif) header.exif = std::move(exif);
    }
    offset += 2 + length;
  }
  check(header.width > 0, "{}: the JPEG has no frame header, or one without a size", source.name);
  return header;
}

ImageHeader read_png_header(const ImageSource& source) {
  ImageHeader header{ImageFormat::png};
  const auto first = source.read(8, 16);
  check(text_of(first).substr(4, 4) == "IHDR", "{}: the PNG is damaged: it does not begin with IHDR", source.name);
  header.width = big_endian(&first[8], 4);
  header.height = big_endian(&first[12], 4);
  each_png_chunk(source, [&](std::string_view type, uint64_t offset, size_t length) {
    if (type == "eXIf" && length <= kMaxExif) header.exif = source.read(offset, length);
  });
  return header;
}

// The canvas from whichever chunk comes first: VP8X, VP8L (lossless) or VP8 (lossy).
void read_webp_size(const ImageSource& source, std::string_view type, uint64_t data, ImageHeader& header) {
  const auto bytes = source.read(data, 10);
  if (type == "VP8X") {
    header.width = 1 + little_endian(&bytes[4], 3);
    header.height = 1 + little_endian(&bytes[7], 3);
  } else if (type == "VP8L") {
    const uint32_t sizes = little_endian(&bytes[1], 4);
    header.width = 1 + (sizes & 0x3FFF);
    header.height = 1 + (sizes >> 14 & 0x3FFF);
  } else {
    check(type == "VP8 ", "{}: the WebP is damaged: it does not begin with VP8, VP8L or VP8X", source.name);
    header.width = little_endian(&bytes[6], 2) & 0x3FFF;
    header.height = little_endian(&bytes[8], 2) & 0x3FFF;
  }
}

ImageHeader read_webp_header(const ImageSource& source) {
  ImageHeader header{ImageFormat::webp};
  const uint64_t end = 8 + uint64_t{little_endian(source.read(4, 4).data(), 4)};
  check(end <= source.size, "{}: the WebP is truncated: expected {}, found {}", source.name, count_of(end, "byte"),
        source.size);
  for (uint64_t offset = 12; offset + 8 <= end;) {
    const auto chunk = source.read(offset, 8);
    const std::string_view type = text_of(chunk).substr(0, 4);
    const size_t length = little_endian(&chunk[4], 4);
    if (offset == 12) read_webp_size(source, type, offset + 8, header);
    if (type == "EXIF" && length <= kMaxExif) header.exif = without_exif_prefix(source.read(offset + 8, length));
    offset += 8 + length + length % 2;
  }
  return header;
}

// A TIFF is what EXIF is made of: of the first directory, with the orientation alone, as other formats have it.
std::vector<uint8_t> exif_of(uint8_t orientation) {
  return {'I', 'I', '*', 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, orientation, 0, 0, 0, 0, 0, 0, 0};
}

ImageHeader read_tiff_header(const ImageSource& source) {
  constexpr uint32_t kWidth = 256, kHeight = 257, kPhotometric = 262, kOrientation = 274, kPalette = 320;
  constexpr uint32_t kShort = 3, kLong = 4, kOfPalette = 3;
  ImageHeader header{ImageFormat::tiff};
  const auto start = source.read(0, 8);
  const auto number = start[0] == 'I' ? little_endian : big_endian;
  const uint32_t directory = number(&start[4], 4);
  const uint32_t entries = number(source.read(directory, 2).data(), 2);
  const auto all = source.read(uint64_t{directory} + 2, size_t{12} * entries);
  bool wants_palette = false, has_palette = false;  // where it is missing, libtiff takes the indices for grey
  for (uint32_t i = 0; i < entries; ++i) {
    const uint8_t* entry = &all[size_t{12} * i];
    const uint32_t tag = number(entry, 2), type = number(entry + 2, 2);
    if (type != kShort && type != kLong) continue;
    const uint32_t value = number(entry + 8, type == kShort ? 2 : 4);
    if (tag == kWidth) header.width = value;
    if (tag == kHeight) header.height = value;
    if (tag == kPhotometric) wants_palette = value == kOfPalette;
    if (tag == kPalette) has_palette = number(entry + 8, 4) + uint64_t{2} * number(entry + 4, 4) <= source.size;
    if (tag == kOrientation && value >= 1 && value <= 8) header.exif = exif_of(uint8_t(value));
  }
  check(has_palette || !wants_palette, "{}: the TIFF is truncated or damaged: it has no palette", source.name);
  return header;
}

// The format that the first bytes are of, if Wick reads it. Of a BMP the 4 bytes at 6 are reserved and 0
// (BITMAPFILEHEADER), which tells it from text that begins so.
std::optional<ImageFormat> format_of(std::string_view start) {
  if (start.starts_with("\xFF\xD8\xFF")) return ImageFormat::jpeg;
  if (start.starts_with("\x89PNG\r\n\x1A\n")) return ImageFormat::png;
  if (start.starts_with("RIFF") && start.find("WEBP") == 8) return ImageFormat::webp;
  if (start.starts_with("GIF87a") || start.starts_with("GIF89a")) return ImageFormat::gif;
  if (start.starts_with("BM") && start.find(std::string_view("\0\0\0\0", 4), 6) == 6) return ImageFormat::bmp;
  if (start.starts_with(std::string_view("II*\0", 4)) || start.starts_with(std::string_view("MM\0*", 4)))
    return ImageFormat::tiff;
  return {};
}

// Another image format, "an AVIF image"; empty if the first bytes are of none.
std::string_view foreign_image(std::string_view start) {
  const std::string_view brand = start.substr(std::min<size_t>(4, start.size()));
  if (brand.starts_with("ftypavif") || brand.starts_with("ftypavis")) return "an AVIF image";
  if (brand.starts_with("ftyphei") || brand.starts_with("ftyphev") || brand.starts_with("ftypmif1") ||
      brand.starts_with("ftypmsf1"))
    return "a HEIF image";
  if (start.starts_with("\xFF\x0A") || brand.starts_with("JXL ")) return "a JPEG XL image";
  return {};
}

std::string_view start_of(const ImageSource& source, std::vector<uint8_t>& bytes) {
  bytes.resize(16);
  bytes.resize(source.read_at(0, bytes.data(), bytes.size()));
  return text_of(bytes);
}

}  // namespace

ImageSource ImageSource::of(std::string_view bytes, const std::string& name) {
  return {name, bytes.size(), [bytes](uint64_t offset, void* data, size_t n) {
            const std::string_view part = bytes.substr(std::min<uint64_t>(offset, bytes.size()), n);
            if (!part.empty()) std::memcpy(data, part.data(), part.size());
            return part.size();
          }};
}

ImageSource ImageSource::of(const FileDescriptor& file) {
  return {file.path().string(), file.size(),
          [&file](uint64_t offset, void* data, size_t n) { return file.read_at(offset, data, n); }};
}

std::vector<uint8_t> ImageSource::read(uint64_t offset, size_t bytes) const {
  std::vector<uint8_t> data(bytes);
  const bool whole = offset <= size && bytes <= size - offset && read_at(offset, data.data(), bytes) == bytes;
  check(whole, "{}: the image is truncated: it ends at byte {}, expected more", name, size);
  return data;
}

ImageHeader read_image_header(const ImageSource& source) {
  std::vector<uint8_t> bytes;
  const std::string_view start = start_of(source, bytes);
  const std::optional<ImageFormat> format = format_of(start);
  if (!format) {
    const std::string_view foreign = foreign_image(start);
    fail("{}: expected {}, found {}", source.name, kReadImages,
         !foreign.empty() ? fmt::format("{}; convert it to PNG", foreign)
         : start.empty()  ? "an empty file"
                          : "something else");
  }
  switch (*format) {
    case ImageFormat::jpeg:
      return read_jpeg_header(source);
    case ImageFormat::png:
      return read_png_header(source);
    case ImageFormat::webp:
      return read_webp_header(source);
    case ImageFormat::gif:
      return read_gif_header(source);
    case ImageFormat::bmp:
      return read_bmp_header(source);
    case ImageFormat::tiff:
      return read_tiff_header(source);
  }
  return {};
}

ImageStart image_start(const std::filesystem::path& path) try {
  const FileDescriptor file(path);
  std::vector<uint8_t> bytes;
  const std::string_view start = start_of(ImageSource::of(file), bytes);
  return {format_of(start).has_value(), foreign_image(start)};
} catch (const Error&) {
  return {};
}

void each_png_chunk(const ImageSource& source, const PngVisitor& visit) {
  for (uint64_t offset = 8;;) {
    const auto chunk = source.read(offset, 8);
    const size_t length = big_endian(chunk.data(), 4);
    const std::string_view type = text_of(chunk).substr(4, 4);
    if (type == "IEND") return;
    visit(type, offset + 8, length);
    offset += 12 + length;
  }
}

}  // namespace wick
