// Words of a prompt that have vectors of their own (textual inversion): an encoder's tokens behind its vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

struct LearnedWord {
  std::string word;               // which may be several words
  std::vector<int64_t> ids = {};  // of an encoder; none where the word is another encoder's

  bool operator==(const LearnedWord&) const = default;
};

// A piece of text, or a word's ids in its place.
struct TextOrIds {
  std::string text;
  std::vector<int64_t> ids = {};

  bool operator==(const TextOrIds&) const = default;
};

// The text between such words, without spaces beside them, and the words. A word is found in any case of ASCII letters,
// the longest first, where no letter or digit continues it. `mark` may stand before a word, and goes with it: so words
// of other encoders are left out, which are text without it.
std::vector<TextOrIds> parts_at_words(std::string_view text, const std::vector<LearnedWord>& words,
                                      std::string_view mark = {});

// For a tokenizer whose `encode` gives a text's ids without those that start and end it.
template <class Encode>
std::vector<int64_t> ids_with_words(std::string_view text, const std::vector<LearnedWord>& words, const Encode& encode,
                                    std::string_view mark = {}) {
  std::vector<int64_t> all;
  for (const TextOrIds& part : parts_at_words(text, words, mark)) {
    const std::vector<int64_t> ids = part.ids.empty() ? encode(part.text) : part.ids;
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

}  // namespace wick
