// Unicode for tokenizers, over utf8proc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace wick {

// The offset of the first byte that is not valid UTF-8, or npos.
size_t invalid_utf8(std::string_view text);

// The bytes of the character at `at`; 0 if they are not valid UTF-8.
size_t utf8_length(std::string_view text, size_t at = 0);

// Throws Error if a text that a user gave has more bytes or is not UTF-8.
void check_text(std::string_view text, size_t max_bytes);

// Puts U+FFFD in place of invalid UTF-8: one for each longest start of a character that is cut short, else one for each
// byte (Unicode's "maximal subpart", Python's errors="replace"); with `each_byte`, one for each byte.
std::string replace_invalid_utf8(std::string_view text, bool each_byte = false);
// The number of bytes at the end that may be the start of a character: 0 to 3.
size_t incomplete_utf8(std::string_view text);

// A character of valid UTF-8 and its classes in patterns of words.
struct Character {
  enum Class : uint8_t {
    kLetter = 1,         // \p{L}
    kNumber = 2,         // \p{N}
    kSpace = 4,          // \s: the property White_Space
    kSymbol = 8,         // every other character: [^\s\p{L}\p{N}]
    kNewline = 16,       // [\r\n]
    kUpper = 32,         // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
    kLower = 64,         // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
    kPunctuation = 128,  // \p{P}
  };
  uint8_t classes, bytes;
};
Character character_at(std::string_view text, size_t at);

// These expect valid UTF-8.
size_t grapheme_length(std::string_view text, size_t at);  // bytes of the extended grapheme cluster that starts there
std::string normalize_nfc(std::string_view text);
std::string normalize_nfkc(std::string_view text);
std::string lower_case(std::string_view text);  // each character by itself: no final sigma

// The alphabet of byte-level BPE (GPT-2), a printable character for every byte, so that vocabularies are plain text:
// the byte itself if Latin-1 prints it, else the next unused character from U+0100 on.
const std::array<std::string, 256>& byte_characters();  // in UTF-8
// The bytes that a token of this alphabet stands for; nullopt if it has other characters.
std::optional<std::string> bytes_of_characters(std::string_view token);

}  // namespace wick
