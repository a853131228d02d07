// The texts that images carry. PNG's chunks: W3C PNG 3rd edition, section 11.3.3.

#include <zlib.h>

#include <algorithm>
#include <optional>
#include <span>

#include "wick/core/error.h"
#include "wick/io/exif.h"
#include "wick/io/image_codec.h"
#include "wick/io/quote.h"
#include "wick/io/utf8.h"

namespace wick {
namespace {

std::string utf8_of_latin1(std::string_view text) {
  std::string utf8;
  for (const char c : text) {
    const auto byte = uint8_t(c);
    if (byte < 0x80)
      utf8 += c;
    else
      utf8 += {char(0xC0 | byte >> 6), char(0x80 | (byte & 0x3F))};
  }
  return utf8;
}

// None if a character lies beyond Latin-1. The text is UTF-8.
std::optional<std::string> latin1_of(std::string_view utf8) {
  std::string text;
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto byte = uint8_t(utf8[i]);
    if (byte < 0x80)
      text += utf8[i];
    else if (byte <= 0xC3 && i + 1 < utf8.size())
      text += char(byte << 6 | (uint8_t(utf8[++i]) & 0x3F));
    else
      return {};
  }
  return text;
}

struct Inflater : z_stream {
  Inflater() : z_stream{} { ready = inflateInit(this) == Z_OK; }
  ~Inflater() { inflateEnd(this); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  bool ready;
};

// None if it is damaged, or longer than a text may be.
std::optional<std::string> inflated(std::string_view packed) {
  Inflater z;
  if (!z.ready) return {};
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  z.avail_in = uInt(packed.size());
  std::string text;
  for (int state = Z_OK; state != Z_STREAM_END;) {
    char part[16384];
    z.next_out = reinterpret_cast<Bytef*>(part);
    z.avail_out = sizeof part;
    state = inflate(&z, Z_NO_FLUSH);
    const size_t made = sizeof part - z.avail_out;
    if ((state != Z_OK && state != Z_STREAM_END) || text.size() + made > kMaxText) return {};
    text.append(part, made);
  }
  return text;
}

// The part of the chunk before the next NUL, which is taken too.
std::optional<std::string_view> take_part(std::string_view& chunk) {
  const size_t end = chunk.find('\0');
  if (end == chunk.npos) return {};
  const std::string_view part = chunk.substr(0, end);
  chunk.remove_prefix(end + 1);
  return part;
}

// The text of a chunk, whose keyword was taken; none if it is damaged.
std::optional<std::string> text_in(std::string_view type, std::string_view chunk) {
  if (type == "tEXt") return utf8_of_latin1(chunk);
  const bool is_international = type == "iTXt";
  bool packed = true;
  if (is_international) {
    if (chunk.empty()) return {};
    packed = chunk.front() != 0;
    chunk.remove_prefix(1);
  }
  if (chunk.empty() || (packed && chunk.front() != 0)) return {};  // zlib is the only method
  chunk.remove_prefix(1);
  if (is_international && (!take_part(chunk) || !take_part(chunk))) return {};  // language, keyword in it
  const std::optional<std::string> text = packed ? inflated(chunk) : std::string(chunk);
  if (!text) return {};
  return is_international ? text : utf8_of_latin1(*text);
}

std::string big_endian(uint32_t value) {
  return {char(value >> 24), char(value >> 16 & 0xFF), char(value >> 8 & 0xFF), char(value & 0xFF)};
}

// A chunk's type and data -> their checksum.
std::string checksum(std::string_view chunk) {
  return big_endian(uint32_t(crc32(0, reinterpret_cast<const Bytef*>(chunk.data()), uInt(chunk.size()))));
}

void read_png_texts(const ImageSource& source, ImageTexts& texts) {
  size_t packed = 0, unpacked = 0;
  const auto check_total = [&] {
    check(packed <= kMaxTexts && unpacked <= kMaxTexts, "{}: the PNG holds more than {} MiB of text", source.name,
          kMaxTexts >> 20);
  };
  each_png_chunk(source, [&](std::string_view type, uint64_t offset, size_t length) {
    if (type != "tEXt" && type != "zTXt" && type != "iTXt") return;
    packed += length;
    check_total();
    const auto data = source.read(offset - 4, length + 8);  // with the type before and the checksum behind
    const std::string_view bytes(reinterpret_cast<const char*>(data.data()), data.size());
    std::string_view chunk = bytes.substr(4, length);
    const auto keyword = take_part(chunk);
    const bool sound = keyword && bytes.substr(length + 4) == checksum(bytes.substr(0, length + 4));
    auto text = sound ? text_in(type, chunk) : std::nullopt;
    check(text && text->size() <= kMaxText && is_utf8(*text),
          "{}: the PNG is damaged: its text {} is not sound, or longer than {} MiB", source.name,
          quote(keyword.value_or("")), kMaxText >> 20);
    unpacked += text->size();
    check_total();
    texts[utf8_of_latin1(*keyword)] = std::move(*text);  // the last of a name, as for Pillow
  });
}

ImageTexts texts_of(const ImageSource& source) {
  const ImageHeader header = read_image_header(source);
  ImageTexts texts = exif_texts(header.exif);
  if (header.format == ImageFormat::png) read_png_texts(source, texts);
  return texts;
}

}  // namespace

std::string png_texts(const ImageTexts& texts) {
  std::string chunks;
  for (const auto& [keyword, text] : texts) {
    const std::optional<std::string> latin1 = latin1_of(text);
    std::string chunk = (latin1 ? "tEXt" : "iTXt") + keyword + '\0';
    if (!latin1) chunk.append(4, '\0');  // not compressed, in no language, without a keyword in it
    chunk += latin1 ? *latin1 : text;
    chunks += big_endian(uint32_t(chunk.size() - 4)) + chunk + checksum(chunk);
  }
  return chunks;
}

ImageTexts read_image_texts(const std::filesystem::path& path) {
  const FileDescriptor file(path);
  return texts_of(ImageSource::of(file));
}

ImageTexts decode_image_texts(std::string_view bytes, const std::string& source) {
  return texts_of(ImageSource::of(bytes, source));
}

}  // namespace wick
