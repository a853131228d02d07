#include "wick/text/foreign_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "wick/io/quote.h"

namespace wick {
namespace {

constexpr size_t kLongest = 1000;  // bytes of a piece

bool is_numeral(char c) { return c >= '0' && c <= '9'; }
bool is_small(char c) { return c >= 'a' && c <= 'z'; }
// Of a word; letters beyond ASCII have bytes from 0x80 on.
bool is_word(char c) {
  return is_numeral(c) || is_small(c) || (c >= 'A' && c <= 'Z') || c == '_' || uint8_t(c) >= 0x80;
}

bool is_escaped(std::string_view text, size_t at) { return at > 0 && text[at - 1] == '\\'; }

// As Python writes a float, more or less.
bool is_number(std::string_view text) {
  const size_t first = text.find_first_not_of(" +-"), last = text.find_last_not_of(' ');
  if (first == text.npos) return false;
  text = text.substr(first, last + 1 - first);
  return text.find_first_not_of("0123456789.eE+-_") == text.npos && (is_numeral(text.front()) || text.front() == '.') &&
         std::ranges::any_of(text, is_numeral);
}

// The first piece from one of `open` to the next of `close` without another `open` between, for which holds(inside).
template <class Holds>
std::optional<std::string> piece(std::string_view text, char open, char close, const Holds& holds) {
  for (size_t at = text.find(open); at != text.npos; at = text.find(open, at + 1)) {
    const std::string_view rest = text.substr(at + 1, kLongest);
    const size_t end = rest.find_first_of(std::string{open, close});
    if (end == rest.npos || rest[end] == open || is_escaped(text, at) || is_escaped(rest, end)) continue;
    if (holds(rest.substr(0, end))) return std::string(text.substr(at, end + 2));
  }
  return {};
}

std::optional<std::string> network(std::string_view text) {
  return piece(text, '<', '>', [](std::string_view inside) {
    return inside.starts_with("lora:") || inside.starts_with("lyco:") || inside.starts_with("hypernet:");
  });
}

// (word:1.3), also around other parentheses, or ((word)).
std::optional<std::string> weight(std::string_view text) {
  std::vector<size_t> open;
  for (size_t at = text.find_first_of("()"); at != text.npos; at = text.find_first_of("()", at + 1)) {
    if (is_escaped(text, at)) continue;
    if (text[at] == '(') {
      open.push_back(at);
      continue;
    }
    if (open.empty()) continue;
    const size_t begin = open.back();
    open.pop_back();
    const std::string_view inside = text.substr(begin + 1, at - begin - 1);
    if (inside.size() > kLongest) continue;
    const size_t colon = inside.rfind(':');
    if (colon != inside.npos && colon > 0 && is_number(inside.substr(colon + 1)))
      return std::string(text.substr(begin, at + 1 - begin));
  }
  for (size_t at = text.find("(("); at != text.npos; at = text.find("((", at + 1)) {
    const std::string_view rest = text.substr(at, kLongest);
    const size_t end = rest.find("))");
    if (end != rest.npos && !is_escaped(text, at)) return std::string(rest.substr(0, end + 2));
  }
  return {};
}

std::optional<std::string> escape(std::string_view text) {
  for (size_t at = text.find('\\'); at != text.npos; at = text.find('\\', at + 1))
    if (const auto next = text.substr(at + 1, 1); next == "(" || next == ")") return std::string(text.substr(at, 2));
  return {};
}

// At the start of the text or of a part in parentheses, or behind a space.
std::optional<std::string> embedding(std::string_view text) {
  constexpr std::string_view kMark = "embedding:";
  for (size_t at = text.find(kMark); at != text.npos; at = text.find(kMark, at + 1)) {
    constexpr std::string_view kBefore = " \t\r\n()";
    if (at > 0 && (kBefore.find(text[at - 1]) == kBefore.npos || is_escaped(text, at - 1))) continue;
    const std::string_view rest = text.substr(at, kLongest);
    const size_t end = std::min(rest.find_first_of(" \t\r\n(),:<[", kMark.size()), rest.size());
    if (end > kMark.size()) return std::string(rest.substr(0, end));
  }
  return {};
}

// [a:b:0.5], [a:0.5], [a::0.5] or [a|b].
std::optional<std::string> edit(std::string_view text) {
  return piece(text, '[', ']', [](std::string_view inside) {
    const size_t colon = inside.rfind(':');
    return inside.find('|') != inside.npos || (colon != inside.npos && is_number(inside.substr(colon + 1)));
  });
}

std::optional<std::string> keyword(std::string_view text) {
  const bool shouts = std::ranges::none_of(text, is_small);
  for (const std::string_view word : {"BREAK", "AND"})
    for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
      const size_t end = at + word.size();
      const bool is_alone = (at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]));
      if (is_alone && (word == "BREAK" || !shouts)) return std::string(word);
    }
  return {};
}

std::optional<std::string> choice(std::string_view text) {
  return piece(text, '{', '}', [](std::string_view inside) { return inside.find('|') != inside.npos; });
}

std::optional<std::string> wildcard(std::string_view text) {
  for (size_t at = text.find("__"); at != text.npos; at = text.find("__", at + 2)) {
    const size_t end = text.substr(0, at + kLongest).find("__", at + 2);
    if (end == text.npos) return {};
    const std::string_view name = text.substr(at + 2, end - at - 2);
    const bool is_name = !name.empty() && std::ranges::all_of(name, [](char c) {
      return is_word(c) || c == '/' || c == '-' || c == '*' || c == '.';
    });
    if (is_name && (at == 0 || !is_word(text[at - 1]))) return std::string(text.substr(at, end + 2 - at));
  }
  return {};
}

}  // namespace

std::vector<ForeignSyntax> foreign_syntax(std::string_view prompt, PromptSyntax syntax) {
  struct Kind {
    ForeignKind kind;
    std::optional<std::string> (*find)(std::string_view text);
  };
  constexpr Kind kKinds[] = {{ForeignKind::network, network}, {ForeignKind::weight, weight},
                             {ForeignKind::escape, escape},   {ForeignKind::embedding, embedding},
                             {ForeignKind::edit, edit},       {ForeignKind::keyword, keyword},
                             {ForeignKind::choice, choice},   {ForeignKind::wildcard, wildcard}};
  constexpr ForeignKind kComfyUis[] = {ForeignKind::weight, ForeignKind::escape, ForeignKind::embedding};
  std::vector<ForeignSyntax> all;
  for (const Kind& kind : kKinds) {
    if (syntax == PromptSyntax::comfyui && std::ranges::find(kComfyUis, kind.kind) != std::end(kComfyUis)) continue;
    if (auto text = kind.find(prompt)) all.push_back({kind.kind, std::move(*text)});
  }
  return all;
}

std::string read_as_words(const std::vector<ForeignSyntax>& pieces, bool may_draw) {
  std::vector<ForeignKind> told;
  std::vector<std::string> texts;
  for (const auto& [kind, text] : pieces) {
    if (std::ranges::find(told, kind) != told.end()) continue;
    told.push_back(kind);
    texts.push_back(quote(text));
  }
  std::string words;
  for (size_t i = 0; i < texts.size(); ++i) words += (i == 0 ? "" : i + 1 == texts.size() ? " and " : ", ") + texts[i];
  words += texts.size() == 1 ? " is read as plain words" : " are read as plain words";
  if (!may_draw) return words;
  const auto has = [&](ForeignKind kind) { return std::ranges::find(told, kind) != told.end(); };
  if (has(ForeignKind::network)) words += "; --lora FILE loads a LoRA";
  const bool has_weight = has(ForeignKind::weight);
  if (has_weight || has(ForeignKind::escape))
    words += fmt::format("; --prompt-syntax comfyui reads {}", has_weight ? "weights" : "escapes");
  if (has(ForeignKind::embedding)) words += "; of embeddings there are those that a --lora holds";
  return words;
}

}  // namespace wick
