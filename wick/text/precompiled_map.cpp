#include "wick/text/precompiled_map.h"

#include <algorithm>
#include <cstring>

#include "wick/core/error.h"
#include "wick/text/tokenizer_spec.h"
#include "wick/text/unicode.h"

namespace wick {
namespace {

// The parts of a unit of Darts-clone's double array.
constexpr uint32_t kIsValue = uint32_t{1} << 31;
uint32_t label(uint32_t unit) { return unit & (kIsValue | 0xff); }
bool has_value(uint32_t unit) { return unit >> 8 & 1; }
uint32_t value(uint32_t unit) { return unit & ~kIsValue; }
uint32_t offset(uint32_t unit) { return unit >> 10 << ((unit >> 6) & 8); }

std::string decode_base64(std::string_view text, const std::string& where) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const size_t digits = std::min(text.find('='), text.size());
  check(text.size() % 4 == 0 && text.size() - digits <= 2 && text.find_first_not_of('=', digits) == text.npos,
        "{}: expected base64 in groups of four characters, found {} characters", where, text.size());
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  for (size_t i = 0; i < digits; ++i) {
    const size_t digit = kAlphabet.find(text[i]);
    check(digit != kAlphabet.npos, "{}: expected base64, found another character at {}", where, i);
    bits = bits << 6 | uint32_t(digit);
    // Six bits a character: a byte is whole at the second, third and fourth of each four.
    if (i % 4 != 0) bytes += char(bits >> (6 - i % 4 * 2));
  }
  return bytes;
}

}  // namespace

PrecompiledMap PrecompiledMap::parse(std::string_view bytes, const std::string& where) {
  PrecompiledMap map;
  if (bytes.empty()) return map;
  uint32_t size = 0;
  check(bytes.size() > sizeof(size), "{}: expected a character map, found {} bytes", where, bytes.size());
  std::memcpy(&size, bytes.data(), sizeof(size));
  bytes.remove_prefix(sizeof(size));
  check(size >= sizeof(uint32_t) && size % sizeof(uint32_t) == 0 && size < bytes.size(),
        "{}: expected a trie of whole units and replacements behind it, found {} of {} bytes for the trie", where, size,
        bytes.size());
  map.units_.resize(size / sizeof(uint32_t));
  std::memcpy(map.units_.data(), bytes.data(), size);
  map.replacements_ = bytes.substr(size);
  const std::string& all = map.replacements_;
  check(all.back() == '\0' && invalid_utf8(all) == all.npos, "{}: expected replacements in UTF-8, each ended by NUL",
        where);
  for (size_t i = 0; i < map.units_.size(); ++i) {
    const uint32_t unit = map.units_[i];
    if ((unit & kIsValue) || !has_value(unit)) continue;
    const size_t leaf = i ^ offset(unit);
    check(leaf < map.units_.size() && value(map.units_[leaf]) < all.size() &&
              (uint8_t(all[value(map.units_[leaf])]) & 0xc0) != 0x80,
          "{}: a rule leads out of the replacements", where);
  }
  return map;
}

PrecompiledMap PrecompiledMap::parse_base64(std::string_view text, const std::string& where) {
  return parse(decode_base64(text, where), where);
}

std::string_view PrecompiledMap::replacement(uint32_t place) const { return replacements_.data() + place; }

PrecompiledMap::Match PrecompiledMap::match(std::string_view text, Wanted wanted) const {
  Match best;
  if (units_.empty()) return best;
  size_t at = offset(units_[0]);
  for (size_t i = 0; i < text.size() && text[i] != '\0'; ++i) {
    at ^= uint8_t(text[i]);
    if (at >= units_.size() || label(units_[at]) != uint8_t(text[i])) break;
    const uint32_t unit = units_[at];
    at ^= offset(unit);
    if (!has_value(unit)) continue;
    best = {i + 1, replacement(value(units_[at]))};
    if (wanted == Wanted::kShortest) break;
  }
  return best;
}

std::string PrecompiledMap::apply_to_graphemes(std::string_view text) const {
  constexpr size_t kLongest = 5;
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const std::string_view grapheme = text.substr(at, grapheme_length(text, at));
    at += grapheme.size();
    const Match whole = grapheme.size() <= kLongest ? match(grapheme, Wanted::kShortest) : Match();
    if (whole.size > 0) {
      out += whole.replacement;
      continue;
    }
    for (size_t i = 0; i < grapheme.size();) {
      const std::string_view character = grapheme.substr(i, utf8_length(grapheme, i));
      const Match rule = match(character, Wanted::kShortest);
      out += rule.size > 0 ? rule.replacement : character;
      i += character.size();
    }
  }
  return out;
}

std::string PrecompiledMap::apply_with_spaces(std::string_view text) const {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  bool is_behind_space = true, is_empty = true;
  while (!text.empty()) {
    const Match rule = match(text, Wanted::kLongest);
    // None where a rule has taken the first bytes of a character alone: sentencepiece replaces each of the others.
    const size_t length = rule.size > 0 ? rule.size : utf8_length(text);
    std::string_view part = rule.size > 0 ? rule.replacement : length > 0 ? text.substr(0, length) : "\ufffd";
    text.remove_prefix(std::max<size_t>(length, 1));
    // A leading space is a whole part: one that merely begins with a space ends the start of the text.
    if (is_empty && part == " ") continue;
    if (is_empty) out += kSpacePiece;
    is_empty = false;
    if (is_behind_space) part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    for (const char c : part) c == ' ' ? out += kSpacePiece : out += c;
    if (!part.empty()) is_behind_space = part.ends_with(' ');
  }
  while (out.ends_with(kSpacePiece)) out.resize(out.size() - kSpacePiece.size());
  return out;
}

}  // namespace wick
