#include "wick/text/words.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "wick/text/unicode.h"

namespace wick {
namespace {

constexpr int kLetter = Character::kLetter, kNumber = Character::kNumber, kSpace = Character::kSpace,
              kSymbol = Character::kSymbol, kNewline = Character::kNewline, kUpper = Character::kUpper,
              kLower = Character::kLower;

// The end of the run of characters of these classes, `most` at the most.
size_t run_end(std::string_view text, size_t at, int classes, int most = std::numeric_limits<int>::max()) {
  for (; most > 0 && at < text.size(); --most) {
    const Character next = character_at(text, at);
    if (!(next.classes & classes)) break;
    at += next.bytes;
  }
  return at;
}

// The length of an English contraction at the start of `text`, 0 if there is none.
size_t contraction(std::string_view text, bool fold_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const auto letter = [&](size_t i) -> char {
    if (i >= text.size()) return 0;
    return fold_case && text[i] >= 'A' && text[i] <= 'Z' ? char(text[i] - 'A' + 'a') : text[i];
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  return fold_case && text.substr(1).starts_with("\u017f") ? 3 : 0;  // the long s is an s in another case
}

// `\s*[\r\n]+` if `to_newline`, else `\s+(?!\S)`, else `\s+`: a run of spaces leaves its last one to the word behind
// it.
size_t spaces_end(std::string_view text, size_t at, bool to_newline) {
  size_t end = at, last = at, newline = at;
  while (end < text.size()) {
    const Character next = character_at(text, end);
    if (!(next.classes & kSpace)) break;
    last = end;
    end += next.bytes;
    if (next.classes & kNewline) newline = end;
  }
  if (to_newline && newline > at) return newline;
  return end == text.size() || last == at ? end : last;
}

// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
size_t gpt2_end(std::string_view text, size_t at) {
  if (const size_t length = contraction(text.substr(at), false)) return at + length;
  const size_t body = at + (text[at] == ' ');
  for (const int kind : {kLetter, kNumber, kSymbol})
    if (const size_t end = run_end(text, body, kind); end > body) return end;
  return spaces_end(text, at, false);
}

// `'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s+`
size_t clip_end(std::string_view text, size_t at) {
  if (const size_t length = contraction(text.substr(at), false)) return at + length;
  const Character first = character_at(text, at);
  return first.classes & kNumber ? at + first.bytes : run_end(text, at, first.classes & (kLetter | kSymbol | kSpace));
}

// ` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`, where `trailing` stands for the class behind the symbols.
size_t symbols_or_spaces_end(std::string_view text, size_t at, std::string_view trailing) {
  const size_t body = at + (text[at] == ' ');
  const size_t end = run_end(text, body, kSymbol);
  if (end > body) return std::min(text.find_first_not_of(trailing, end), text.size());
  return spaces_end(text, at, true);
}

// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}|`, then the above.
size_t llama3_end(std::string_view text, size_t at, int digits) {
  if (const size_t length = contraction(text.substr(at), true)) return at + length;
  const Character first = character_at(text, at);
  const size_t letters = at + (first.classes & (kLetter | kNumber | kNewline) ? 0 : first.bytes);
  if (const size_t end = run_end(text, letters, kLetter); end > letters) return end;
  if (first.classes & kNumber) return run_end(text, at, kNumber, digits);
  return symbols_or_spaces_end(text, at, "\r\n");
}

// With upper = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and lower = [\p{Ll}\p{Lm}\p{Lo}\p{M}], the ends of upper*lower+ and of
// upper+lower* at `at`, or `at` where they do not match.
std::pair<size_t, size_t> cased_ends(std::string_view text, size_t at) {
  size_t uppers = at, after_both = at;  // the ends of upper*, and of its last character that is lower too
  while (uppers < text.size()) {
    const Character next = character_at(text, uppers);
    if (!(next.classes & kUpper)) break;
    uppers += next.bytes;
    if (next.classes & kLower) after_both = uppers;
  }
  const size_t end = run_end(text, uppers, kLower);
  return {end > uppers ? end : after_both, uppers > at ? end : at};
}

// `[^\r\n\p{L}\p{N}]?upper*lower+|[^\r\n\p{L}\p{N}]?upper+lower*|\p{N}|`, then symbols and spaces.
size_t tekken_end(std::string_view text, size_t at) {
  const Character first = character_at(text, at);
  const bool may_lead = !(first.classes & (kLetter | kNumber | kNewline));
  const size_t behind = at + (may_lead ? first.bytes : 0);
  const auto led = cased_ends(text, behind), bare = may_lead ? cased_ends(text, at) : led;
  if (led.first > behind) return led.first;
  if (bare.first > at) return bare.first;
  if (led.second > behind) return led.second;
  if (bare.second > at) return bare.second;
  if (first.classes & kNumber) return at + first.bytes;
  return symbols_or_spaces_end(text, at, "\r\n/");
}

size_t digits_end(std::string_view text, size_t at) {
  const Character first = character_at(text, at);
  if (first.classes & kNumber) return at + first.bytes;
  return run_end(text, at, ~kNumber);
}

// The end of the run of characters that all match, or all do not, as the first one does.
template <class Matches>
size_t alike_end(std::string_view text, size_t at, const Matches& matches) {
  const bool wanted = matches(at);
  do at += character_at(text, at).bytes;
  while (at < text.size() && matches(at) == wanted);
  return at;
}

size_t punctuation_end(std::string_view text, size_t at) {
  return alike_end(text, at, [&](size_t i) {
    return (character_at(text, i).classes & Character::kPunctuation) != 0 ||
           std::string_view("$+<=>^~|").find(text[i]) != std::string_view::npos;
  });
}

size_t numbers_end(std::string_view text, size_t at) {
  return alike_end(text, at, [&](size_t i) { return (character_at(text, i).classes & kNumber) != 0; });
}

size_t three_digits_end(std::string_view text, size_t at) {
  const auto are_digits = [&](size_t i) {
    return i + 3 <= text.size() && std::ranges::all_of(text.substr(i, 3), [](char c) { return c >= '0' && c <= '9'; });
  };
  if (are_digits(at)) return at + 3;
  while (at < text.size() && !are_digits(at)) ++at;
  return at;
}

}  // namespace

std::optional<WordPattern> word_pattern_of_regex(std::string_view regex) {
  if (regex == R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)")
    return WordPattern::kGpt2;
  constexpr std::string_view kContractions = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
  constexpr std::string_view kRest = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (regex.starts_with(kContractions) && regex.ends_with(kRest) &&
      regex.size() >= kContractions.size() + kRest.size()) {
    regex.remove_prefix(kContractions.size());
    regex.remove_suffix(kRest.size());
    if (regex == R"(\p{N}{1,3})") return WordPattern::kLlama3;
    if (regex == R"(\p{N})") return WordPattern::kQwen2;
  }
  if (regex == R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
               R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
               R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)")
    return WordPattern::kTekken;
  return std::nullopt;
}

size_t word_end(WordPattern pattern, std::string_view text, size_t at) {
  switch (pattern) {
    case WordPattern::kGpt2:
      return gpt2_end(text, at);
    case WordPattern::kLlama3:
      return llama3_end(text, at, 3);
    case WordPattern::kQwen2:
      return llama3_end(text, at, 1);
    case WordPattern::kTekken:
      return tekken_end(text, at);
    case WordPattern::kClip:
      return clip_end(text, at);
    case WordPattern::kDigits:
      return digits_end(text, at);
    case WordPattern::kPunctuation:
      return punctuation_end(text, at);
    case WordPattern::kNumbers:
      return numbers_end(text, at);
    case WordPattern::kThreeDigits:
      return three_digits_end(text, at);
  }
  return text.size();
}

}  // namespace wick
