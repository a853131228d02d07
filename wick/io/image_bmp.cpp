// BMP, without a library: Microsoft's BITMAPCOREHEADER, BITMAPINFOHEADER and those that follow it, with palettes, masks
// of colours or run lengths. Source: Microsoft, "Bitmap Storage" and "Bitmap Compression".

#include <algorithm>
#include <array>
#include <bit>

#include "wick/core/error.h"
#include "wick/io/image_codec.h"

namespace wick {
namespace {

enum BmpCompression : uint32_t { kNone = 0, kRle8 = 1, kRle4 = 2, kMasks = 3, kMasksWithAlpha = 6 };

uint32_t little(const uint8_t* p, int bytes) {
  uint32_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | p[i];
  return value;
}

struct BmpHeader {
  uint32_t offset = 0;  // of the pixels
  int64_t width = 0, height = 0;
  bool top_down = false;
  uint32_t bits = 0, compression = kNone;
  std::array<uint32_t, 4> masks{};                // of red, green, blue and alpha
  std::vector<std::array<uint8_t, 3>> palette{};  // blue, green, red

  int64_t row_bytes() const { return (width * int64_t(bits) + 31) / 32 * 4; }
};

constexpr uint32_t kFileHeader = 14, kCoreHeader = 12, kInfoHeader = 40;

// Masks lie behind the header of 40 bytes, or in the longer ones; alpha's in those alone.
void read_masks(const ImageSource& source, uint32_t size, BmpHeader& header) {
  const bool has_masks = header.compression == kMasks || header.compression == kMasksWithAlpha;
  if (has_masks) {
    const bool has_alpha = size >= 56 || header.compression == kMasksWithAlpha;
    const auto bytes = source.read(kFileHeader + kInfoHeader, has_alpha ? 16 : 12);
    for (size_t i = 0; i < bytes.size() / 4; ++i) header.masks[i] = little(&bytes[4 * i], 4);
  } else if (header.bits == 16) {
    header.masks = {0x7C00, 0x3E0, 0x1F, 0};
  } else {
    header.masks = {0xFF0000, 0xFF00, 0xFF, 0};
  }
}

void read_palette(const ImageSource& source, uint32_t size, uint32_t colours, BmpHeader& header) {
  const uint32_t most = 1u << header.bits, entry = size == kCoreHeader ? 3 : 4;
  const uint32_t count = colours == 0 || size == kCoreHeader ? most : std::min(colours, most);
  const uint64_t begin = kFileHeader + size;
  const uint64_t room = header.offset > begin ? (header.offset - begin) / entry : 0;
  const auto bytes = source.read(begin, size_t(std::min<uint64_t>(count, room) * entry));
  header.palette.resize(most, {0, 0, 0});
  for (size_t i = 0; i < bytes.size() / entry; ++i) std::copy_n(&bytes[i * entry], 3, header.palette[i].begin());
}

BmpHeader read_header(const ImageSource& source) {
  const auto start = source.read(0, kFileHeader + 4);
  BmpHeader header{.offset = little(&start[10], 4)};
  const uint32_t size = little(&start[14], 4);
  check(size == kCoreHeader || (size >= kInfoHeader && size <= 1024),
        "{}: the BMP is damaged: a header of {} bytes, expected 12 or from 40 on", source.name, size);
  const auto fields = source.read(kFileHeader, size);
  uint32_t colours = 0;
  if (size == kCoreHeader) {
    header.width = little(&fields[4], 2), header.height = little(&fields[6], 2);
    header.bits = little(&fields[10], 2);
  } else {
    header.width = int32_t(little(&fields[4], 4));
    const int64_t height = int32_t(little(&fields[8], 4));
    header.top_down = height < 0;
    header.height = std::abs(height);
    header.bits = little(&fields[14], 2);
    header.compression = little(&fields[16], 4);
    colours = little(&fields[32], 4);
  }
  const uint32_t bits = header.bits;
  const bool is_rle = (header.compression == kRle8 && bits == 8) || (header.compression == kRle4 && bits == 4);
  const bool has_masks =
      (header.compression == kMasks || header.compression == kMasksWithAlpha) && (bits == 16 || bits == 32);
  const bool is_plain =
      header.compression == kNone && (bits == 1 || bits == 4 || bits == 8 || bits == 16 || bits == 24 || bits == 32);
  check(is_rle || has_masks || is_plain,
        "{}: a BMP of {} bits a pixel and compression {}, which Wick does not read; save it as PNG", source.name, bits,
        header.compression);
  if (bits <= 8)
    read_palette(source, size, colours, header);
  else
    read_masks(source, size, header);
  return header;
}

// Palette indices of run lengths, [height, width] from the bottom row on; what no run reaches is 0.
class RunLengths {
 public:
  RunLengths(std::string_view bytes, const BmpHeader& header, const std::string& source)
      : bytes_(bytes), header_(header), source_(source), indices_(size_t(header.width * header.height)) {}

  std::vector<uint8_t> operator()() {
    while (y_ < header_.height) {
      const uint8_t count = next(), value = next();
      if (count > 0)
        for (int i = 0; i < count; ++i) put(part_of(value, i));
      else if (value == 0)
        x_ = 0, ++y_;
      else if (value == 1)
        break;
      else if (value == 2)
        x_ += next(), y_ += next();
      else
        literal(value);
    }
    return std::move(indices_);
  }

 private:
  bool is_half() const { return header_.bits == 4; }
  uint8_t part_of(uint8_t byte, int i) const { return !is_half() ? byte : i % 2 == 0 ? byte >> 4 : byte & 15; }

  uint8_t next() {
    check(at_ < bytes_.size(), "{}: the BMP is truncated", source_);
    return uint8_t(bytes_[at_++]);
  }

  void put(uint8_t index) {
    if (x_ < header_.width && y_ < header_.height) indices_[size_t(y_ * header_.width + x_)] = index;
    ++x_;
  }

  void literal(int count) {
    uint8_t byte = 0;
    for (int i = 0; i < count; ++i) {
      if (!is_half() || i % 2 == 0) byte = next();
      put(part_of(byte, i));
    }
    const int read = is_half() ? (count + 1) / 2 : count;
    if (read % 2 != 0) ++at_;
  }

  std::string_view bytes_;
  const BmpHeader& header_;
  const std::string& source_;
  std::vector<uint8_t> indices_;
  size_t at_ = 0;
  int64_t x_ = 0, y_ = 0;
};

// The part of a pixel under a mask, of 0 to 255.
uint8_t part(uint32_t pixel, uint32_t mask) {
  if (mask == 0) return 0;
  const int shift = std::countr_zero(mask);
  return uint8_t(uint64_t((pixel & mask) >> shift) * 255 / (mask >> shift));
}

void check_masks(const BmpHeader& header, const std::string& source) {
  for (const uint32_t mask : header.masks)
    check(mask == 0 || std::has_single_bit((uint64_t(mask) >> std::countr_zero(mask)) + 1),
          "{}: the BMP is damaged: a mask of colours has gaps", source);
}

}  // namespace

ImageHeader read_bmp_header(const ImageSource& source) {
  const BmpHeader header = read_header(source);
  return {.format = ImageFormat::bmp, .width = header.width, .height = header.height};
}

Pixels decode_bmp(std::string_view bytes, const ImageHeader&, const std::string& source) {
  const BmpHeader header = read_header(ImageSource::of(bytes, source));
  check_masks(header, source);
  const std::string_view data = bytes.substr(std::min<size_t>(header.offset, bytes.size()));
  const bool is_rle = header.compression == kRle8 || header.compression == kRle4;
  const auto row_bytes = size_t(header.row_bytes());
  check(is_rle || data.size() / row_bytes >= size_t(header.height) ||
            data.size() >= row_bytes * size_t(header.height - 1) + (size_t(header.width) * header.bits + 7) / 8,
        "{}: the BMP is truncated: its pixels take {} bytes, found {}", source, row_bytes * size_t(header.height),
        data.size());
  const std::vector<uint8_t> runs = is_rle ? RunLengths(data, header, source)() : std::vector<uint8_t>();
  Pixels pixels{.has_alpha = header.bits > 8 && header.masks[3] != 0};
  pixels.values.resize(size_t(header.width * header.height) * (pixels.has_alpha ? 4 : 3));
  uint8_t* out = pixels.values.data();
  for (int64_t y = 0; y < header.height; ++y) {
    const auto row = size_t(header.top_down ? y : header.height - 1 - y);
    const auto* from = reinterpret_cast<const uint8_t*>(data.data()) + row * row_bytes;
    for (size_t x = 0; x < size_t(header.width); ++x) {
      if (header.bits <= 8) {
        const size_t bit = x * header.bits;
        const size_t index = is_rle ? runs[row * size_t(header.width) + x]
                                    : from[bit / 8] >> (8 - header.bits - bit % 8) & ((1u << header.bits) - 1);
        const auto& [blue, green, red] = header.palette[index];
        *out++ = red, *out++ = green, *out++ = blue;
        continue;
      }
      const uint32_t pixel = little(from + x * header.bits / 8, int(header.bits / 8));
      for (size_t c = 0; c < (pixels.has_alpha ? 4u : 3u); ++c) *out++ = part(pixel, header.masks[c]);
    }
  }
  return pixels;
}

}  // namespace wick
