#include "wick/text/byte_characters.h"

namespace wick {
namespace {

constexpr int kEnd = 0x144;  // the alphabet's characters are below: 256 and the 68 bytes that do not print

bool prints(int byte) { return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad); }

// The byte of each character, -1 where there is none.
std::array<int, kEnd> bytes_by_character() {
  std::array<int, kEnd> bytes;
  bytes.fill(-1);
  int unused = 0x100;
  for (int byte = 0; byte < 256; ++byte) bytes[size_t(prints(byte) ? byte : unused++)] = byte;
  return bytes;
}

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const auto characters = [] {
    std::array<std::string, 256> all;
    const auto bytes = bytes_by_character();
    for (int character = 0; character < kEnd; ++character) {
      if (bytes[size_t(character)] < 0) continue;
      std::string& utf8 = all[size_t(bytes[size_t(character)])];
      if (character >= 0x80) utf8 += char(0xc0 | character >> 6);
      utf8 += char(character < 0x80 ? character : 0x80 | (character & 0x3f));
    }
    return all;
  }();
  return characters;
}

std::optional<std::string> bytes_of_characters(std::string_view token) {
  static const auto bytes = bytes_by_character();
  std::string out;
  out.reserve(token.size());
  for (size_t at = 0; at < token.size();) {
    int character = uint8_t(token[at++]);
    if (character >= 0x80) {  // two bytes of UTF-8 reach all of the alphabet
      if ((character & 0xe0) != 0xc0 || at == token.size() || (token[at] & 0xc0) != 0x80) return std::nullopt;
      character = (character & 0x1f) << 6 | (token[at++] & 0x3f);
    }
    if (character >= kEnd || bytes[size_t(character)] < 0) return std::nullopt;
    out += char(bytes[size_t(character)]);
  }
  return out;
}

}  // namespace wick
