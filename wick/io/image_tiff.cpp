// TIFF by libtiff: its first picture, of 1 to 16 bits a sample in greys, colours, a palette or CMYK, in strips or
// tiles. Source: Adobe, "TIFF, Revision 6.0".

#include <tiffio.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "wick/core/error.h"
#include "wick/io/image_codec.h"

namespace wick {
namespace {

// The file in memory, as libtiff reads it.
struct TiffFile {
  std::string_view bytes;
  uint64_t at = 0;
};

tmsize_t read_some(thandle_t handle, void* to, tmsize_t count) {
  auto& file = *static_cast<TiffFile*>(handle);
  const std::string_view part = file.bytes.substr(std::min<uint64_t>(file.at, file.bytes.size()), size_t(count));
  if (!part.empty()) std::memcpy(to, part.data(), part.size());
  file.at += part.size();
  return tmsize_t(part.size());
}

toff_t seek(thandle_t handle, toff_t offset, int whence) {
  auto& file = *static_cast<TiffFile*>(handle);
  const uint64_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? file.at : file.bytes.size();
  return file.at = base + offset;
}

tmsize_t write_none(thandle_t, void*, tmsize_t) { return 0; }
int close_none(thandle_t) { return 0; }
toff_t size_of(thandle_t handle) { return static_cast<TiffFile*>(handle)->bytes.size(); }

using TiffPointer = std::unique_ptr<TIFF, void (*)(TIFF*)>;

// libtiff's own messages are for standard error.
TiffPointer open_tiff(TiffFile& file, const std::string& source) {
  static std::once_flag silenced;
  std::call_once(silenced, [] {
    TIFFSetErrorHandler(nullptr);
    TIFFSetWarningHandler(nullptr);
  });
  // "m": not mapped into memory.
  TIFF* tiff =
      TIFFClientOpen(source.c_str(), "rm", &file, read_some, write_none, seek, close_none, size_of, nullptr, nullptr);
  check(tiff, "{}: the TIFF is truncated or damaged: it has no directory", source);
  return {tiff, TIFFClose};
}

struct TiffLayout {
  uint32_t width = 0, height = 0;
  uint16_t bits = 1, samples = 1, planar = PLANARCONFIG_CONTIG, photometric = 0, compression = 1, format = 1;
  bool has_alpha = false, is_premultiplied = false;

  uint16_t colours() const {
    return photometric == PHOTOMETRIC_RGB || photometric == PHOTOMETRIC_YCBCR ? 3
           : photometric == PHOTOMETRIC_SEPARATED                             ? 4
                                                                              : 1;
  }
};

TiffLayout layout_of(TIFF* tiff, const std::string& source) {
  TiffLayout t;
  TIFFGetField(tiff, TIFFTAG_IMAGEWIDTH, &t.width);
  TIFFGetField(tiff, TIFFTAG_IMAGELENGTH, &t.height);
  TIFFGetFieldDefaulted(tiff, TIFFTAG_BITSPERSAMPLE, &t.bits);
  TIFFGetFieldDefaulted(tiff, TIFFTAG_SAMPLESPERPIXEL, &t.samples);
  TIFFGetFieldDefaulted(tiff, TIFFTAG_PLANARCONFIG, &t.planar);
  TIFFGetFieldDefaulted(tiff, TIFFTAG_COMPRESSION, &t.compression);
  TIFFGetFieldDefaulted(tiff, TIFFTAG_SAMPLEFORMAT, &t.format);
  if (TIFFGetField(tiff, TIFFTAG_PHOTOMETRIC, &t.photometric) == 0)
    t.photometric = t.samples >= 3 ? PHOTOMETRIC_RGB : PHOTOMETRIC_MINISBLACK;
  check(TIFFIsCODECConfigured(t.compression) != 0,
        "{}: a TIFF of compression {}, which Wick does not read; save it as PNG", source, t.compression);
  const bool is_jpeg = t.compression == COMPRESSION_JPEG && t.photometric == PHOTOMETRIC_YCBCR;
  if (is_jpeg) TIFFSetField(tiff, TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
  const bool is_known = t.photometric == PHOTOMETRIC_MINISWHITE || t.photometric == PHOTOMETRIC_MINISBLACK ||
                        t.photometric == PHOTOMETRIC_RGB || t.photometric == PHOTOMETRIC_PALETTE ||
                        t.photometric == PHOTOMETRIC_SEPARATED || is_jpeg;
  const bool fits = t.bits == 8 || (t.bits == 16 && t.photometric != PHOTOMETRIC_PALETTE) ||
                    ((t.bits == 1 || t.bits == 2 || t.bits == 4) && t.colours() == 1);
  check(is_known && fits && t.format == SAMPLEFORMAT_UINT && t.samples >= t.colours() && t.samples <= 8,
        "{}: a TIFF of {} x {} bits in colour space {}, which Wick does not read; save it as PNG", source, t.samples,
        t.bits, t.photometric);
  uint16_t count = 0;
  const uint16_t* kinds = nullptr;
  TIFFGetFieldDefaulted(tiff, TIFFTAG_EXTRASAMPLES, &count, &kinds);
  const bool is_grey = t.colours() == 1;
  t.has_alpha = t.samples > t.colours() && count > 0 &&
                (kinds[0] != EXTRASAMPLE_UNSPECIFIED || (is_grey && t.samples == 2)) &&
                t.photometric != PHOTOMETRIC_SEPARATED;
  t.is_premultiplied = t.has_alpha && kinds[0] == EXTRASAMPLE_ASSOCALPHA;
  return t;
}

// Samples of the whole picture, [height, width, samples], of the values that they have; of 16 bits the upper 8.
class TiffSamples {
 public:
  TiffSamples(TIFF* tiff, const TiffLayout& layout, const std::string& source)
      : tiff_(tiff), t_(layout), source_(source), values_(size_t(t_.width) * t_.height * t_.samples) {}

  std::vector<uint8_t> operator()() {
    const bool is_tiled = TIFFIsTiled(tiff_) != 0;
    uint32_t wide = t_.width, high = t_.height;
    if (is_tiled) {
      TIFFGetField(tiff_, TIFFTAG_TILEWIDTH, &wide);
      TIFFGetField(tiff_, TIFFTAG_TILELENGTH, &high);
    } else {
      TIFFGetFieldDefaulted(tiff_, TIFFTAG_ROWSPERSTRIP, &high);
      high = std::min(high, t_.height);
    }
    const tmsize_t bytes = is_tiled ? TIFFTileSize(tiff_) : TIFFStripSize(tiff_);
    const tmsize_t row = is_tiled ? TIFFTileRowSize(tiff_) : TIFFScanlineSize(tiff_);
    const tmsize_t most = std::max(tmsize_t{1} << 24, 4 * std::ssize(values_));
    check(wide > 0 && high > 0 && row > 0 && bytes > 0 && bytes <= most,
          "{}: the TIFF is damaged: a part of it is of {} x {} pixels", source_, wide, high);
    buffer_.resize(size_t(bytes));
    const uint16_t planes = t_.planar == PLANARCONFIG_SEPARATE ? t_.samples : 1;
    for (uint16_t plane = 0; plane < planes; ++plane)
      for (uint32_t y = 0; y < t_.height; y += high)
        for (uint32_t x = 0; x < t_.width; x += wide) {
          const uint32_t rows = std::min(high, t_.height - y), columns = std::min(wide, t_.width - x);
          const tmsize_t wanted = is_tiled ? bytes : TIFFVStripSize(tiff_, rows);
          const tmsize_t found =
              is_tiled ? TIFFReadEncodedTile(tiff_, TIFFComputeTile(tiff_, x, y, 0, plane), buffer_.data(), bytes)
                       : TIFFReadEncodedStrip(tiff_, TIFFComputeStrip(tiff_, y, plane), buffer_.data(), wanted);
          check(found >= wanted && row * tmsize_t(rows) <= bytes, "{}: the TIFF is truncated or damaged", source_);
          for (uint32_t r = 0; r < rows; ++r) spread(size_t(r) * size_t(row), x, y + r, columns, plane, planes);
        }
    return std::move(values_);
  }

 private:
  // A row of the buffer to its place.
  void spread(size_t from, uint32_t x, uint32_t y, uint32_t columns, uint16_t plane, uint16_t planes) {
    const uint16_t each = planes > 1 ? 1 : t_.samples;  // samples of a pixel in the buffer
    for (uint32_t column = 0; column < columns; ++column)
      for (uint16_t s = 0; s < each; ++s) {
        const size_t to = ((size_t(y) * t_.width + x + column) * t_.samples) + (planes > 1 ? plane : s);
        values_[to] = sample(from, size_t(column) * each + s);
      }
  }

  uint8_t sample(size_t row, size_t i) const {
    if (t_.bits == 8) return buffer_[row + i];
    if (t_.bits == 16) {
      uint16_t value;  // in the order of this machine
      std::memcpy(&value, &buffer_[row + 2 * i], 2);
      return uint8_t(value >> 8);
    }
    const size_t bit = i * t_.bits;
    return uint8_t(buffer_[row + bit / 8] >> (8 - t_.bits - bit % 8) & ((1u << t_.bits) - 1));
  }

  TIFF* tiff_;
  const TiffLayout& t_;
  const std::string& source_;
  std::vector<uint8_t> values_, buffer_;
};

// a · b / 255, rounded.
unsigned product(unsigned a, unsigned b) { return (a * b + 127) / 255; }

// Colours of a pixel's samples.
class TiffColours {
 public:
  TiffColours(TIFF* tiff, const TiffLayout& layout, const std::string& source) : t_(layout) {
    if (t_.photometric != PHOTOMETRIC_PALETTE) return;
    check(TIFFGetField(tiff, TIFFTAG_COLORMAP, &map_[0], &map_[1], &map_[2]) != 0,
          "{}: the TIFF is damaged: it has no palette", source);
  }

  void operator()(const uint8_t* samples, uint8_t* rgb) const {
    const unsigned most = t_.bits >= 8 ? 255 : (1u << t_.bits) - 1;
    for (size_t c = 0; c < 3; ++c) switch (t_.photometric) {
        case PHOTOMETRIC_PALETTE:
          rgb[c] = uint8_t(map_[c][samples[0]] >> 8);
          break;
        case PHOTOMETRIC_SEPARATED:
          rgb[c] = uint8_t(255 - samples[3] - product(samples[c], 255 - samples[3]));
          break;
        case PHOTOMETRIC_MINISWHITE:
          rgb[c] = uint8_t(255 - samples[0] * 255 / most);
          break;
        case PHOTOMETRIC_MINISBLACK:
          rgb[c] = uint8_t(samples[0] * 255 / most);
          break;
        default:
          rgb[c] = samples[c];
      }
  }

 private:
  const TiffLayout& t_;
  uint16_t* map_[3] = {};
};

}  // namespace

Pixels decode_tiff(std::string_view bytes, const ImageHeader& header, const std::string& source) {
  TiffFile file{bytes};
  const TiffPointer tiff = open_tiff(file, source);
  const TiffLayout layout = layout_of(tiff.get(), source);
  check(layout.width == header.width && layout.height == header.height, "{}: the TIFF is damaged: it has two sizes",
        source);
  const std::vector<uint8_t> samples = TiffSamples(tiff.get(), layout, source)();
  const TiffColours colours(tiff.get(), layout, source);
  Pixels pixels{.has_alpha = layout.has_alpha};
  const size_t count = size_t(layout.width) * layout.height, each = layout.has_alpha ? 4 : 3;
  pixels.values.resize(count * each);
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* from = &samples[i * layout.samples];
    uint8_t* to = &pixels.values[i * each];
    colours(from, to);
    if (!layout.has_alpha) continue;
    const unsigned alpha = to[3] = from[layout.colours()];
    if (layout.is_premultiplied && alpha > 0)
      for (size_t c = 0; c < 3; ++c) to[c] = uint8_t(std::min(255u, to[c] * 255u / alpha));
  }
  return pixels;
}

}  // namespace wick
