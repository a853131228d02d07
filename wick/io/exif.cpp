#include "wick/io/exif.h"

#include <utf8proc.h>

#include <algorithm>
#include <cassert>
#include <iterator>
#include <optional>

#include "wick/io/utf8.h"

namespace wick {
namespace {

using Bytes = std::span<const uint8_t>;

constexpr uint32_t kOrientation = 0x0112, kExifDirectory = 0x8769, kMakerNote = 0x927C, kUserComment = 0x9286;
constexpr uint32_t kByte = 1, kAscii = 2, kShort = 3, kLong = 4, kUndefined = 7;  // types

// In the order of their tags, as a directory has to be.
struct TextTag {
  const char* keyword;
  uint32_t tag;
  std::string_view mark;  // the bytes before the text
};
constexpr TextTag kTextTags[] = {{"wick", kMakerNote, "wick:"},
                                 {"parameters", kUserComment, std::string_view("UNICODE\0", 8)}};

std::string_view text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Everything is checked: what does not lie within the block is not there.
class Tiff {
 public:
  explicit Tiff(Bytes bytes) : bytes_(bytes), little_(text_of(bytes).starts_with("II")) {
    const bool known = little_ || text_of(bytes).starts_with("MM");
    if (!known || bytes.size() < 8 || number(2, 2) != 42) bytes_ = {};
  }

  // The value of a tag in the first directory, or in that which starts at `directory`; empty if there is none.
  Bytes value(uint32_t tag, size_t directory) const {
    if (bytes_.size() < 2 || directory > bytes_.size() - 2) return {};
    const size_t entries = std::min<size_t>(number(directory, 2), (bytes_.size() - directory - 2) / 12);
    for (size_t i = 0; i < entries; ++i) {
      const size_t entry = directory + 2 + 12 * i;  // tag, type, count, value or its offset
      if (number(entry, 2) != tag) continue;
      const uint64_t size = uint64_t{size_of(number(entry + 2, 2))} * number(entry + 4, 4);
      const uint64_t offset = size <= 4 ? entry + 8 : number(entry + 8, 4);
      return offset <= bytes_.size() && size <= bytes_.size() - offset ? bytes_.subspan(offset, size) : Bytes{};
    }
    return {};
  }
  Bytes value(uint32_t tag) const { return bytes_.empty() ? Bytes{} : value(tag, number(4, 4)); }

  uint32_t as_number(Bytes value) const { return number_in(value, 0, int(std::min<size_t>(value.size(), 4))); }

 private:
  // Pillow writes texts as kByte.
  static uint32_t size_of(uint32_t type) {
    return type == kShort ? 2 : type == kLong ? 4 : type == kByte || type == kAscii || type == kUndefined ? 1 : 0;
  }
  uint32_t number(size_t offset, int bytes) const { return number_in(bytes_, offset, bytes); }
  uint32_t number_in(Bytes from, size_t offset, int bytes) const {
    uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | from[offset + size_t(little_ ? bytes - 1 - i : i)];
    return value;
  }

  Bytes bytes_;
  bool little_;
};

std::string big_endian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += char(value >> 8 * i & 0xFF);
  return text;
}

std::string utf16_of(std::string_view text) {  // big-endian
  std::string units;
  while (!text.empty()) {
    utf8proc_int32_t c;
    const auto* start = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const utf8proc_ssize_t taken = utf8proc_iterate(start, utf8proc_ssize_t(text.size()), &c);
    if (taken <= 0) c = 0xFFFD;
    units += c < 0x10000 ? big_endian(uint32_t(c), 2)
                         : big_endian(0xD800 + (uint32_t(c - 0x10000) >> 10), 2) +
                               big_endian(0xDC00 + (uint32_t(c - 0x10000) & 0x3FF), 2);
    text.remove_prefix(size_t(std::max<utf8proc_ssize_t>(taken, 1)));
  }
  return units;
}

// Standard and writers disagree about the order of bytes: the one that makes more of the units ASCII is taken, since
// `parameters` always has some.
std::string utf8_of_utf16(Bytes bytes) {
  const size_t units = bytes.size() / 2;
  size_t big = 0, little = 0;
  for (size_t i = 0; i < units; ++i) {
    big += bytes[2 * i] == 0 && bytes[2 * i + 1] < 0x80;
    little += bytes[2 * i + 1] == 0 && bytes[2 * i] < 0x80;
  }
  const size_t high = big >= little ? 0 : 1;
  const auto unit = [&](size_t i) {
    return i < units ? uint32_t(bytes[2 * i + high] << 8 | bytes[2 * i + 1 - high]) : 0;
  };
  std::string text;
  for (size_t i = 0; i < units; ++i) {
    uint32_t c = unit(i);
    if (c == 0xFEFF && i == 0) continue;  // a byte order mark
    if (c >= 0xD800 && c < 0xDC00 && unit(i + 1) >= 0xDC00 && unit(i + 1) < 0xE000)
      c = 0x10000 + ((c - 0xD800) << 10) + (unit(++i) - 0xDC00);
    if (c >= 0xD800 && c < 0xE000) c = 0xFFFD;  // half of a pair
    utf8proc_uint8_t encoded[4];
    text.append(reinterpret_cast<const char*>(encoded), size_t(utf8proc_encode_char(utf8proc_int32_t(c), encoded)));
  }
  return text;
}

// A UserComment says in its first eight bytes how it is written. JIS is left out.
std::optional<std::string> user_comment(Bytes value) {
  if (value.size() < 8) return {};
  const std::string_view code = text_of(value.first(8)), text = text_of(value.subspan(8));
  if (code == std::string_view("UNICODE\0", 8)) return utf8_of_utf16(value.subspan(8));
  const bool is_plain = code == std::string_view("ASCII\0\0\0", 8) || code == std::string_view("\0\0\0\0\0\0\0\0", 8);
  return is_plain && is_utf8(text) ? std::optional<std::string>(text) : std::nullopt;
}

std::optional<std::string> marked(Bytes value, std::string_view mark) {
  const std::string_view text = text_of(value);
  if (!text.starts_with(mark) || !is_utf8(text)) return {};
  return std::string(text.substr(mark.size()));
}

}  // namespace

int exif_orientation(Bytes tiff) {
  const Tiff block(tiff);
  const Bytes value = block.value(kOrientation);
  const uint32_t orientation = value.size() >= 2 ? block.as_number(value.first(2)) : 1;
  return orientation >= 1 && orientation <= 8 ? int(orientation) : 1;
}

std::map<std::string, std::string> exif_texts(Bytes tiff) {
  const Tiff block(tiff);
  const Bytes directory = block.value(kExifDirectory);
  std::map<std::string, std::string> texts;
  if (directory.size() != 4) return texts;
  for (const auto& [keyword, tag, mark] : kTextTags) {
    const Bytes value = block.value(tag, block.as_number(directory));
    std::optional<std::string> text = tag == kUserComment ? user_comment(value) : marked(value, mark);
    if (!text) continue;
    text->erase(text->find_last_not_of('\0') + 1);  // some writers end it as C does
    texts[keyword] = std::move(*text);
  }
  return texts;
}

std::string exif_block_of(const std::map<std::string, std::string>& texts) {
  const size_t entries =
      size_t(std::ranges::count_if(kTextTags, [&](const TextTag& t) { return texts.contains(t.keyword); }));
  assert(entries == texts.size());
  constexpr uint32_t kFirst = 8, kSecond = kFirst + 2 + 12 + 4;  // where the directories begin
  std::string block = "MM" + big_endian(42, 2) + big_endian(kFirst, 4) + big_endian(1, 2) +
                      big_endian(kExifDirectory, 2) + big_endian(kLong, 2) + big_endian(1, 4) + big_endian(kSecond, 4) +
                      big_endian(0, 4) + big_endian(uint32_t(entries), 2);
  std::string values;
  for (const auto& [keyword, tag, mark] : kTextTags) {
    const auto found = texts.find(keyword);
    if (found == texts.end()) continue;
    const std::string value = std::string(mark) + (tag == kUserComment ? utf16_of(found->second) : found->second);
    block += big_endian(tag, 2) + big_endian(kUndefined, 2) + big_endian(uint32_t(value.size()), 4) +
             big_endian(uint32_t(kSecond + 2 + 12 * entries + 4 + values.size()), 4);
    values += value + std::string(value.size() % 2, '\0');
  }
  return block + big_endian(0, 4) + values;
}

}  // namespace wick
