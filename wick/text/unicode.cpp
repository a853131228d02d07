#include "wick/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cassert>
#include <vector>

#include "wick/core/error.h"

namespace wick {
namespace {

const utf8proc_uint8_t* bytes(std::string_view text) { return reinterpret_cast<const utf8proc_uint8_t*>(text.data()); }

void append_utf8(std::string& out, utf8proc_int32_t character) {
  utf8proc_uint8_t encoded[4];
  const auto length = utf8proc_encode_char(character, encoded);
  out.append(reinterpret_cast<const char*>(encoded), size_t(length));
}

void append_decomposed(std::vector<utf8proc_int32_t>& out, utf8proc_int32_t character, utf8proc_option_t options) {
  constexpr size_t kLongest = 18;  // U+FDFA's compatibility decomposition
  const size_t size = out.size();
  out.resize(size + kLongest);
  const auto count = utf8proc_decompose_char(character, out.data() + size, kLongest, options, nullptr);
  assert(count > 0 && size_t(count) <= kLongest);
  out.resize(size + size_t(count));
}

// utf8proc_map() would do it all, but it puts marks in order by swapping neighbours: quadratic in the length of a run.
std::string normalize(std::string_view text, int compatibility) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return uint8_t(c) < 0x80; })) return std::string(text);
  const auto options = utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | compatibility);
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t character;
    at += size_t(utf8proc_iterate(bytes(text) + at, utf8proc_ssize_t(text.size() - at), &character));
    append_decomposed(characters, character, options);
  }

  const auto order = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  const auto is_mark = [&](utf8proc_int32_t c) { return order(c) != 0; };
  const auto less = [&](utf8proc_int32_t a, utf8proc_int32_t b) { return order(a) < order(b); };
  for (auto at = characters.begin(); at != characters.end();) {
    const auto marks = std::find_if(at, characters.end(), is_mark);
    at = std::find_if_not(marks, characters.end(), is_mark);
    if (at - marks > 1) std::stable_sort(marks, at, less);
  }

  const auto composed = utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto count = utf8proc_normalize_utf32(characters.data(), utf8proc_ssize_t(characters.size()), composed);
  assert(count >= 0);
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < size_t(count); ++i) append_utf8(out, characters[i]);
  return out;
}

// The length in bytes of a character with this first byte; 1 also if there is no such character.
size_t whole_length(uint8_t lead) {
  if (lead < 0xc2 || lead > 0xf4) return 1;
  return lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
}

// How many bytes at `at`, where no character begins, could start one; at least 1.
size_t invalid_length(std::string_view text, size_t at) {
  const uint8_t lead = uint8_t(text[at]);
  const size_t whole = whole_length(lead);
  // Some first bytes narrow the range of the second: no surrogates, no overlong forms, nothing beyond U+10FFFF.
  uint8_t low = 0x80, high = 0xbf;
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  size_t length = 1;
  while (length < whole && at + length < text.size()) {
    const uint8_t next = uint8_t(text[at + length]);
    if (next < low || next > high) break;
    low = 0x80, high = 0xbf;
    ++length;
  }
  return length;
}

uint8_t classes_of(utf8proc_int32_t character) {
  using C = Character;
  switch (utf8proc_category(character)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return C::kLetter | C::kUpper;
    case UTF8PROC_CATEGORY_LL:
      return C::kLetter | C::kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return C::kLetter | C::kUpper | C::kLower;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return C::kSymbol | C::kUpper | C::kLower;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return C::kNumber;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return C::kSpace;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return C::kSymbol | C::kPunctuation;
    default:
      if (character == '\r' || character == '\n') return C::kSpace | C::kNewline;
      return (character >= '\t' && character <= '\r') || character == 0x85 ? C::kSpace : C::kSymbol;
  }
}

// Rule GB9c of grapheme clusters, which utf8proc 2.8 lacks: no break before a consonant behind a consonant with viramas
// and other marks, in the six scripts that have such conjuncts (Unicode 15.1, InCB).
class Conjunct {
 public:
  // Whether `next` stands in a conjunct with the characters before it.
  bool goes_on(utf8proc_int32_t next) {
    const utf8proc_int32_t block = next & ~0x7f, place = next & 0x7f;
    const bool has_conjuncts = block == 0x900 || block == 0x980 || block == 0xa80 || (block >= 0xb00 && block <= 0xd00);
    const bool in_script = has_conjuncts && block != 0xb80 && block != 0xc80;
    const bool is_consonant = in_script && ((place >= 0x15 && place <= 0x39) || (place >= 0x58 && place <= 0x5f));
    const auto kind = utf8proc_get_property(next)->boundclass;
    const bool is_mark = (kind == UTF8PROC_BOUNDCLASS_EXTEND && next != 0x200c) || kind == UTF8PROC_BOUNDCLASS_ZWJ;
    const bool joins = is_consonant && has_virama_;
    has_virama_ = !is_consonant && is_mark && (has_virama_ || (has_consonant_ && in_script && place == 0x4d));
    has_consonant_ = is_consonant || (is_mark && has_consonant_);
    return joins;
  }

 private:
  bool has_consonant_ = false, has_virama_ = false;
};

// The byte of each character of the alphabet, -1 where there is none. The characters are below 0x144: 256 and the 68
// bytes that do not print.
std::array<int, 0x144> bytes_by_character() {
  const auto prints = [](int byte) { return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad); };
  std::array<int, 0x144> all;
  all.fill(-1);
  int unused = 0x100;
  for (int byte = 0; byte < 256; ++byte) all[size_t(prints(byte) ? byte : unused++)] = byte;
  return all;
}

}  // namespace

size_t utf8_length(std::string_view text, size_t at) {
  utf8proc_int32_t character;
  const auto length = utf8proc_iterate(bytes(text) + at, utf8proc_ssize_t(text.size() - at), &character);
  return length > 0 ? size_t(length) : 0;
}

size_t invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

void check_text(std::string_view text, size_t max_bytes) {
  check(text.size() <= max_bytes, "text: expected at most {} bytes, found {}", max_bytes, text.size());
  const size_t invalid = invalid_utf8(text);
  check(invalid == text.npos, "text: expected UTF-8, found an invalid byte at {}; save it as UTF-8", invalid);
}

std::string replace_invalid_utf8(std::string_view text, bool each_byte) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    out += length > 0 ? text.substr(at, length) : "\ufffd";
    at += length > 0 ? length : each_byte ? 1 : invalid_length(text, at);
  }
  return out;
}

size_t incomplete_utf8(std::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(3, text.size()); ++size) {
    const size_t at = text.size() - size;
    const uint8_t byte = uint8_t(text[at]);
    if ((byte & 0xc0) == 0x80) continue;  // not the first of its character
    return whole_length(byte) > size && invalid_length(text, at) == size ? size : 0;
  }
  return 0;
}

Character character_at(std::string_view text, size_t at) {
  static const auto ascii = [] {
    std::array<uint8_t, 128> classes;
    for (int c = 0; c < 128; ++c) classes[size_t(c)] = classes_of(c);
    return classes;
  }();
  const uint8_t first = uint8_t(text[at]);
  if (first < 128) return {ascii[first], 1};
  utf8proc_int32_t character;
  const auto length = utf8proc_iterate(bytes(text) + at, utf8proc_ssize_t(text.size() - at), &character);
  assert(length > 0);
  return {classes_of(character), uint8_t(length)};
}

size_t grapheme_length(std::string_view text, size_t at) {
  utf8proc_int32_t before = 0, next = 0, state = 0;
  Conjunct conjunct;
  size_t length = 0;
  while (at + length < text.size()) {
    const auto size = utf8proc_iterate(bytes(text) + at + length, utf8proc_ssize_t(text.size() - at - length), &next);
    if (next == 0x897) next = 0x898;  // a mark since Unicode 16, not yet in utf8proc 2.8; its neighbour is one
    const bool breaks = length > 0 && utf8proc_grapheme_break_stateful(before, next, &state);
    if (!conjunct.goes_on(next) && breaks) break;
    length += size_t(size);
    before = next;
  }
  return length;
}

std::string normalize_nfc(std::string_view text) { return normalize(text, 0); }

std::string normalize_nfkc(std::string_view text) { return normalize(text, UTF8PROC_COMPAT); }

std::string lower_case(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t character;
    at += size_t(utf8proc_iterate(bytes(text) + at, utf8proc_ssize_t(text.size() - at), &character));
    if (character == 0x130)  // the one capital whose lower case is two characters: i and a dot above
      lower += "i\u0307";
    else
      append_utf8(lower, utf8proc_tolower(character));
  }
  return lower;
}

const std::array<std::string, 256>& byte_characters() {
  static const auto characters = [] {
    std::array<std::string, 256> all;
    const auto bytes = bytes_by_character();
    for (size_t character = 0; character < bytes.size(); ++character)
      if (bytes[character] >= 0) append_utf8(all[size_t(bytes[character])], utf8proc_int32_t(character));
    return all;
  }();
  return characters;
}

std::optional<std::string> bytes_of_characters(std::string_view token) {
  static const auto all = bytes_by_character();
  std::string out;
  out.reserve(token.size());
  for (size_t at = 0; at < token.size();) {
    utf8proc_int32_t character;
    const auto length = utf8proc_iterate(bytes(token) + at, utf8proc_ssize_t(token.size() - at), &character);
    if (length <= 0 || size_t(character) >= all.size() || all[size_t(character)] < 0) return std::nullopt;
    out += char(all[size_t(character)]);
    at += size_t(length);
  }
  return out;
}

}  // namespace wick
