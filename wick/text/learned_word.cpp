#include "wick/text/learned_word.h"

#include <algorithm>

namespace wick {
namespace {

char lower(char c) { return 'A' <= c && c <= 'Z' ? char(c - 'A' + 'a') : c; }

// Letters and digits, and bytes of others than ASCII's.
bool is_letter(char c) { return ('0' <= c && c <= '9') || ('a' <= lower(c) && lower(c) <= 'z') || uint8_t(c) >= 0x80; }

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

bool begins_here(std::string_view text, size_t at, std::string_view word) {
  const std::string_view found = text.substr(at, word.size());
  if (!std::ranges::equal(found, word, {}, lower, lower)) return false;
  const size_t end = at + word.size();
  const bool continues_before = at > 0 && is_letter(text[at - 1]) && is_letter(word.front()),
             continues_behind = end < text.size() && is_letter(text[end]) && is_letter(word.back());
  return !continues_before && !continues_behind;
}

struct Found {
  const LearnedWord* word = nullptr;
  size_t size = 0;  // with the mark
};

Found longest_at(std::string_view text, size_t at, const std::vector<LearnedWord>& words, std::string_view mark) {
  Found longest;
  for (const LearnedWord& candidate : words) {
    if (candidate.word.empty()) continue;
    const std::string marked = std::string(mark) + candidate.word;
    if (!mark.empty() && marked.size() > longest.size && begins_here(text, at, marked))
      longest = {&candidate, marked.size()};
    if (!candidate.ids.empty() && candidate.word.size() > longest.size && begins_here(text, at, candidate.word))
      longest = {&candidate, candidate.word.size()};
  }
  return longest;
}

}  // namespace

std::vector<TextOrIds> parts_at_words(std::string_view text, const std::vector<LearnedWord>& words,
                                      std::string_view mark) {
  if (words.empty()) return {{std::string(text)}};
  std::vector<TextOrIds> parts;
  const auto add_text = [&](std::string_view piece, bool behind_word, bool before_word) {
    while (behind_word && !piece.empty() && is_space(piece.front())) piece.remove_prefix(1);
    while (before_word && !piece.empty() && is_space(piece.back())) piece.remove_suffix(1);
    if (!piece.empty()) parts.push_back({std::string(piece)});
  };
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const Found found = longest_at(text, at, words, mark);
    if (!found.word) {
      ++at;
      continue;
    }
    add_text(text.substr(start, at - start), start > 0, true);
    if (!found.word->ids.empty()) parts.push_back({"", found.word->ids});
    start = at += found.size;
  }
  add_text(text.substr(start), start > 0, false);
  return parts;
}

}  // namespace wick
