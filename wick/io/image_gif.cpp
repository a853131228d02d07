// The first frame of a GIF, without a library. Source: CompuServe, "Graphics Interchange Format, Version 89a".

#include <algorithm>
#include <array>
#include <optional>

#include "wick/core/error.h"
#include "wick/io/image_codec.h"

namespace wick {
namespace {

int64_t word(const uint8_t* p) { return p[0] | p[1] << 8; }

struct GifFrame {
  int64_t width = 0, height = 0;                  // of the canvas, which a frame beyond its edge makes larger
  int64_t left = 0, top = 0, wide = 0, high = 0;  // of the frame
  bool is_interlaced = false;
  std::vector<uint8_t> palette;  // red, green, blue; empty: indices are grey
  std::optional<uint8_t> transparent;
  uint64_t data = 0;  // where its code size lies
};

size_t colours_in(uint8_t flags) { return (flags & 0x80) != 0 ? size_t{2} << (flags & 7) : 0; }

// The offset behind a row of blocks, each with its length before it.
uint64_t behind_blocks(const ImageSource& source, uint64_t offset) {
  for (uint8_t length = 1; length != 0; offset += 1 + length) length = source.read(offset, 1)[0];
  return offset;
}

GifFrame read_frame(const ImageSource& source) {
  const auto screen = source.read(6, 7);
  GifFrame frame{.width = word(&screen[0]), .height = word(&screen[2])};
  frame.palette = source.read(13, 3 * colours_in(screen[4]));
  for (uint64_t offset = 13 + frame.palette.size();;) {
    const uint8_t kind = source.read(offset, 1)[0];
    if (kind == 0x21) {  // an extension
      constexpr uint8_t kControl = 0xF9;
      if (source.read(offset + 1, 1)[0] == kControl) {
        const auto control = source.read(offset + 2, 5);
        if ((control[1] & 1) != 0) frame.transparent = control[4];
      }
      offset = behind_blocks(source, offset + 2);
      continue;
    }
    check(kind == 0x2C, "{}: the GIF is damaged: it has no frame", source.name);
    const auto place = source.read(offset + 1, 9);
    frame.left = word(&place[0]), frame.top = word(&place[2]);
    frame.wide = word(&place[4]), frame.high = word(&place[6]);
    frame.is_interlaced = (place[8] & 0x40) != 0;
    if (const size_t own = colours_in(place[8]); own > 0) frame.palette = source.read(offset + 10, 3 * own);
    frame.data = offset + 10 + 3 * colours_in(place[8]);
    frame.width = std::max(frame.width, frame.left + frame.wide);
    frame.height = std::max(frame.height, frame.top + frame.high);
    return frame;
  }
}

// Codes of 3 to 12 bits, from the lowest bit of the data blocks on.
class GifCodes {
 public:
  GifCodes(const ImageSource& source, uint64_t offset) : source_(source), offset_(offset) {}

  uint32_t next(int bits) {
    while (count_ < bits) {
      if (at_ == block_.size()) refill();
      bits_ |= uint32_t(block_[at_++]) << count_;
      count_ += 8;
    }
    const uint32_t code = bits_ & ((1u << bits) - 1);
    bits_ >>= bits, count_ -= bits;
    return code;
  }

 private:
  void refill() {
    const uint8_t length = source_.read(offset_, 1)[0];
    check(length > 0, "{}: the GIF is truncated: its first frame ends early", source_.name);
    block_ = source_.read(offset_ + 1, length);
    offset_ += 1 + length, at_ = 0;
  }

  const ImageSource& source_;
  uint64_t offset_;
  std::vector<uint8_t> block_;
  size_t at_ = 0;
  uint32_t bits_ = 0;
  int count_ = 0;
};

// The frame's indices, in the order in which they are stored.
std::vector<uint8_t> unpacked(const ImageSource& source, const GifFrame& frame) {
  constexpr uint32_t kMost = 4096, kNoCode = kMost;
  const uint8_t size = source.read(frame.data, 1)[0];
  check(size >= 1 && size <= 8, "{}: the GIF is damaged: codes of {} bits", source.name, size);
  const uint32_t clear = 1u << size, end = clear + 1;
  std::array<uint16_t, kMost> before{};  // an entry is the entry before, and one index
  std::array<uint8_t, kMost> last{};
  for (uint32_t i = 0; i < clear; ++i) last[i] = uint8_t(i);
  GifCodes codes(source, frame.data + 1);
  const auto wanted = size_t(frame.wide * frame.high);
  std::vector<uint8_t> indices, entry;
  indices.reserve(std::min<size_t>(wanted, size_t{1} << 24));
  uint32_t entries = end + 1, previous = kNoCode;
  int bits = size + 1;
  while (indices.size() < wanted) {
    const uint32_t code = codes.next(bits);
    if (code == clear) {
      entries = end + 1, bits = size + 1, previous = kNoCode;
      continue;
    }
    check(code != end, "{}: the GIF is truncated: its first frame ends early", source.name);
    check(code < entries || (code == entries && previous != kNoCode), "{}: the GIF is damaged: a code has no meaning",
          source.name);
    entry.clear();
    uint32_t at = code == entries ? previous : code;
    for (; at > end; at = before[at]) entry.push_back(last[at]);
    check(at < clear, "{}: the GIF is damaged: a code has no meaning", source.name);
    entry.push_back(last[at]);
    const uint8_t first = entry.back();
    indices.insert(indices.end(), entry.rbegin(), entry.rend());
    if (code == entries) indices.push_back(first);
    if (previous != kNoCode && entries < kMost) {
      before[entries] = uint16_t(previous), last[entries] = first;
      ++entries;
    }
    if (entries == (1u << bits) && bits < 12) ++bits;
    previous = code;
  }
  indices.resize(wanted);
  return indices;
}

// Rows in the order in which they are stored: all, or every eighth, fourth and second, and what is left.
std::vector<int64_t> stored_rows(const GifFrame& frame) {
  std::vector<int64_t> rows;
  constexpr std::pair<int, int> kPasses[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}};
  for (const auto& [first, step] : kPasses)
    for (int64_t y = first; frame.is_interlaced && y < frame.high; y += step) rows.push_back(y);
  for (int64_t y = 0; !frame.is_interlaced && y < frame.high; ++y) rows.push_back(y);
  return rows;
}

}  // namespace

ImageHeader read_gif_header(const ImageSource& source) {
  const GifFrame frame = read_frame(source);
  return {.format = ImageFormat::gif, .width = frame.width, .height = frame.height};
}

// What the frame leaves free has the transparent colour, or the first one, as other readers have it.
Pixels decode_gif(std::string_view bytes, const ImageHeader& header, const std::string& source) {
  const ImageSource file = ImageSource::of(bytes, source);
  const GifFrame frame = read_frame(file);
  std::vector<uint8_t> canvas(size_t(header.width * header.height), frame.transparent.value_or(0));
  const std::vector<uint8_t> indices = unpacked(file, frame);
  auto from = indices.begin();
  for (const int64_t row : stored_rows(frame)) {
    std::copy_n(from, frame.wide, canvas.begin() + (frame.top + row) * header.width + frame.left);
    from += frame.wide;
  }
  Pixels pixels{.has_alpha = frame.transparent.has_value()};
  for (const uint8_t index : canvas) {
    for (size_t c = 0; c < 3; ++c) {
      const size_t at = 3 * size_t(index) + c;
      pixels.values.push_back(frame.palette.empty() ? index : at < frame.palette.size() ? frame.palette[at] : 0);
    }
    if (pixels.has_alpha) pixels.values.push_back(index == frame.transparent ? 0 : 255);
  }
  return pixels;
}

}  // namespace wick
