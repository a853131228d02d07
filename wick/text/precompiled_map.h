// SentencePiece's precompiled character map: the rules by which a text is normalised before it is cut (NFKC and a few
// of SentencePiece's own, as "nmt_nfkc").
//
// The format (sentencepiece's builder.cc and normalizer.cc): u32 bytes of the trie, the trie, then the replacements,
// each ended by a NUL. The trie is a double array as Darts-clone writes it, u32 units, whose values are places of
// replacements.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

class PrecompiledMap {
 public:
  PrecompiledMap() = default;  // without rules

  // Throws Error that begins with `where` if the bytes are no such map.
  static PrecompiledMap parse(std::string_view bytes, const std::string& where);
  // The same of base64, as tokenizer.json has it.
  static PrecompiledMap parse_base64(std::string_view text, const std::string& where);

  // These expect and return valid UTF-8.

  // The rules as HF tokenizers applies them: a grapheme of at most 5 bytes becomes the replacement of the shortest rule
  // that matches its start (the rest of it is dropped); without such a rule, and in longer graphemes, this is done
  // character by character.
  std::string apply_to_graphemes(std::string_view text) const;
  // SentencePiece's normaliser with add_dummy_prefix, remove_extra_whitespaces and escape_whitespaces: the longest rule
  // at each place; U+2581 for each run of spaces, and one in front, none at the end.
  std::string apply_with_spaces(std::string_view text) const;

 private:
  struct Match {
    size_t size = 0;  // bytes; 0 is none
    std::string_view replacement;
  };
  enum class Wanted { kShortest, kLongest };
  Match match(std::string_view text, Wanted wanted) const;
  std::string_view replacement(uint32_t place) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace wick
