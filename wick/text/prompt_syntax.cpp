#include "wick/text/prompt_syntax.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/text/clip_tokenizer.h"
#include "wick/text/t5_tokenizer.h"
#include "wick/text/unicode.h"

namespace wick {
namespace {

constexpr char kOpen = '\xFE', kClose = '\xFF';  // parentheses of the text: bytes that UTF-8 does not have

std::string with_escapes_marked(std::string_view prompt) {
  std::string marked;
  for (size_t i = 0; i < prompt.size(); ++i) {
    const char next = prompt[i] == '\\' && i + 1 < prompt.size() ? prompt[i + 1] : '\0';
    if (next == '(' || next == ')')
      marked += next == '(' ? kOpen : kClose, ++i;
    else
      marked += prompt[i];
  }
  return marked;
}

std::string with_escapes_resolved(std::string_view marked) {
  std::string text(marked);
  std::ranges::replace(text, kOpen, '(');
  std::ranges::replace(text, kClose, ')');
  return text;
}

// The outermost parentheses with all that is in them, and the text between them. Below depth 0 a "(" opens nothing.
std::vector<std::string_view> outermost(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  const auto cut = [&](size_t at) {
    if (at > start) parts.push_back(text.substr(start, at - start));
    start = at;
  };
  int64_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(' && depth++ == 0) cut(i);
    if (text[i] == ')' && --depth == 0) cut(i + 1);
  }
  cut(text.size());
  return parts;
}

bool is_digit(char c) { return '0' <= c && c <= '9'; }

// Moves digits, which may have an underscore between any two, from `rest` to `number`. Were there any?
bool take_digits(std::string_view& rest, std::string& number) {
  size_t i = 0;
  for (; i < rest.size(); ++i) {
    const bool joins = rest[i] == '_' && i > 0 && i + 1 < rest.size() && is_digit(rest[i + 1]);
    if (!is_digit(rest[i]) && !joins) break;
    if (!joins) number += rest[i];
  }
  rest.remove_prefix(i);
  return i > 0;
}

// Moves one of these characters, if it is next.
bool take(std::string_view characters, std::string_view& rest, std::string& number) {
  if (rest.empty() || characters.find(rest.front()) == characters.npos) return false;
  number += rest.front();
  rest.remove_prefix(1);
  return true;
}

// Python's, which has four more than Unicode's White_Space.
bool is_space_at(std::string_view text, size_t at) {
  return utf8_length(text, at) > 0 &&
         ((character_at(text, at).classes & Character::kSpace) || ('\x1C' <= text[at] && text[at] <= '\x1F'));
}

void skip_spaces(std::string_view& rest) {
  while (!rest.empty() && is_space_at(rest, 0)) rest.remove_prefix(utf8_length(rest));
}

bool ends_with_space(std::string_view text) {
  size_t last = text.size();
  while (last > 0 && (uint8_t(text[--last]) & 0xC0) == 0x80) {
  }
  return !text.empty() && is_space_at(text, last);
}

// Where the next space is, or the end.
size_t next_space(std::string_view text, size_t at) {
  while (at < text.size() && !is_space_at(text, at)) at += std::max<size_t>(utf8_length(text, at), 1);
  return std::min(at, text.size());
}

// Moves a number of Python's, which may be infinite or "nan".
bool take_number(std::string_view& rest, std::string& number) {
  if (rest.starts_with('+'))
    rest.remove_prefix(1);
  else
    take("-", rest, number);
  for (const std::string_view word : {"infinity", "inf", "nan"})
    if (std::ranges::equal(rest.substr(0, word.size()), word, [](char c, char small) { return (c | 0x20) == small; })) {
      number += word;
      rest.remove_prefix(word.size());
      return true;
    }
  const bool whole = take_digits(rest, number), broken = take(".", rest, number) && take_digits(rest, number);
  if (!whole && !broken) return false;
  if (!take("eE", rest, number)) return true;
  take("+-", rest, number);
  return take_digits(rest, number);
}

// The weight that stands behind a colon; none where something else does.
std::optional<double> weight_of(std::string_view text) {
  std::string_view rest = text;
  std::string number;
  skip_spaces(rest);
  const bool is_number = take_number(rest, number);
  skip_spaces(rest);
  if (!is_number || !rest.empty()) return std::nullopt;
  double weight = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), weight);
  check_usage(error == std::errc() && std::isfinite(float(weight)),
              "--prompt-syntax comfyui: expected a finite number as the weight behind a colon, found {}",
              quote(std::string(text)));
  return weight;
}

void add_parts(std::string_view marked, double weight, int depth, std::vector<WeightedText>& parts) {
  constexpr int kDeepest = 256;
  check_usage(depth <= kDeepest, "--prompt-syntax comfyui: expected parentheses of at most {} levels, found more",
              kDeepest);
  for (std::string_view part : outermost(marked)) {
    if (part.size() < 2 || part.front() != '(' || part.back() != ')') {
      parts.push_back({with_escapes_resolved(part), float(weight)});
      continue;
    }
    part = part.substr(1, part.size() - 2);
    const size_t colon = part.rfind(':');
    const std::optional<double> number =
        colon == part.npos || colon == 0 ? std::nullopt : weight_of(part.substr(colon + 1));
    add_parts(number ? part.substr(0, colon) : part, number.value_or(weight * 1.1), depth + 1, parts);
  }
}

constexpr std::string_view kMark = "embedding:";

// ComfyUI takes `embedding:` for a reference at the start of a part, and behind a space of any kind (in 2025 only
// behind " " and the end of a line).
void check_no_embedding(std::string_view text) {
  for (size_t at = text.find(kMark); at != text.npos; at = text.find(kMark, at + 1))
    check_usage(at > 0 && !ends_with_space(text.substr(0, at)),
                "--prompt-syntax comfyui: {} names an embedding (textual inversion) that no --lora holds; leave it "
                "out of the prompt",
                quote(text.substr(at, next_space(text, at) - at)));
}

}  // namespace

std::vector<WeightedText> weighted_texts(std::string_view prompt, const std::vector<LearnedWord>& words) {
  check_text(prompt, ClipTokenizer::kMaxTextBytes);
  std::vector<WeightedText> whole, parts;
  add_parts(with_escapes_marked(prompt), 1, 0, whole);
  for (const auto& [text, weight, ids] : whole)
    for (TextOrIds& part : parts_at_words(text, words, kMark))
      parts.push_back({std::move(part.text), weight, std::move(part.ids)});
  for (const WeightedText& part : parts) {
    check_no_embedding(part.text);
    check_usage(std::isfinite(part.weight), "--prompt-syntax comfyui: {} has a weight that is not finite",
                quote(part.text));
  }
  return parts;
}

WeightedIds clip_chunks(const std::vector<WeightedText>& parts, const ClipTokenizer& tokenizer) {
  constexpr size_t kDivided = 8;
  const auto length = size_t(tokenizer.max_length()), most = length - 2;
  WeightedIds chunks;
  const auto add = [&](int64_t id, float weight) {
    chunks.ids.push_back(id);
    chunks.weights.push_back(weight);
  };
  const auto filled = [&] { return (chunks.ids.size() - 1) % length; };  // of this chunk, without its start
  const auto finish = [&] {
    add(tokenizer.eos_id(), 1);
    while (chunks.ids.size() % length != 0) add(tokenizer.pad_id(), 1);
  };
  const auto begin_next = [&] { finish(), add(tokenizer.bos_id(), 1); };
  add(tokenizer.bos_id(), 1);
  for (const auto& [text, weight, given] : parts) {
    const std::vector<int64_t> ids = given.empty() ? tokenizer.encode_bare(text) : given;
    if (ids.size() < kDivided && filled() + ids.size() > most) begin_next();
    for (const int64_t id : ids) {
      if (filled() == most) begin_next();
      add(id, weight);
    }
  }
  finish();
  return chunks;
}

WeightedIds t5_ids(const std::vector<WeightedText>& parts, const T5Tokenizer& tokenizer) {
  WeightedIds all;
  for (const auto& [text, weight, given] : parts) {
    const std::vector<int64_t> ids = given.empty() ? tokenizer.encode_bare(text) : given;
    all.ids.insert(all.ids.end(), ids.begin(), ids.end());
    all.weights.resize(all.ids.size(), weight);
  }
  all.ids.push_back(tokenizer.end_id());
  all.weights.push_back(1);
  return all;
}

}  // namespace wick
