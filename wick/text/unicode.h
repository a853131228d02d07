// Unicode for tokenizers, over utf8proc and PCRE2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace wick {

// The offset of the first byte that is not valid UTF-8, or npos.
size_t invalid_utf8(std::string_view text);

// The bytes of the character at `at`; 0 if they are not valid UTF-8.
size_t utf8_length(std::string_view text, size_t at = 0);

// Puts U+FFFD in place of invalid UTF-8: one for each longest start of a character that is cut short, else one for each
// byte (Unicode's "maximal subpart", Python's errors="replace").
std::string replace_invalid_utf8(std::string_view text);
// The number of bytes at the end that may be the start of a character: 0 to 3.
size_t incomplete_utf8(std::string_view text);

// A character of valid UTF-8 and its classes in patterns of words.
struct Character {
  enum Class : uint8_t {
    kLetter = 1,    // \p{L}
    kNumber = 2,    // \p{N}
    kSpace = 4,     // \s: the property White_Space
    kSymbol = 8,    // every other character: [^\s\p{L}\p{N}]
    kNewline = 16,  // [\r\n]
    kUpper = 32,    // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
    kLower = 64,    // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
  };
  uint8_t classes, bytes;
};
Character character_at(std::string_view text, size_t at);

// These expect valid UTF-8.
std::string normalize_nfc(std::string_view text);
std::string normalize_nfkc(std::string_view text);
std::string lower_case(std::string_view text);  // each character by itself: no final sigma

// A compiled regular expression in which \p{..} and \s are Unicode's.
class Regex {
 public:
  explicit Regex(const char* pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Calls `found` with each match in turn, from the left, until it returns false. `text` is valid UTF-8.
  void each_match(std::string_view text, const std::function<bool(std::string_view)>& found) const;

 private:
  pcre2_real_code_8* code_;
};

}  // namespace wick
