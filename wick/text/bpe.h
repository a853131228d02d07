// Byte-pair encoding of a word to ids (Sennrich et al., 2016) in its two variants: merges learnt as a list of pairs (HF
// tokenizers), and pieces with scores (SentencePiece, Kudo and Richardson, 2018).
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "wick/text/merge.h"
#include "wick/text/token_matcher.h"
#include "wick/text/tokenizer_spec.h"

namespace wick {

class Bpe {
 public:
  // `spellings` has, by id, each token's spelling in the text to be encoded. Both arguments must outlive this object.
  Bpe(const TokenizerSpec& spec, const std::vector<std::string>& spellings);
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;

  // Appends the tokens of `word`: bytes if byte-level, else UTF-8.
  void encode(std::string_view word, std::vector<WordToken>& tokens) const;

 private:
  // Unused pieces that came up in merging, each with the size of its left part: they are taken apart again.
  using Pieces = std::unordered_map<std::string_view, size_t>;

  int32_t find(std::string_view piece) const;  // Symbol::kNone if there is none
  bool pieces_end_at_spaces() const;
  void rank_scores();
  void encode_part(std::string_view word, size_t start, size_t end, std::vector<WordToken>& tokens) const;
  void encode_by_merges(std::string_view word, std::vector<WordToken>& tokens) const;
  std::vector<Symbol> symbols_to_merge(std::string_view word) const;
  bool push_bytes(std::string_view character, int32_t start, std::vector<Symbol>& symbols) const;
  void encode_by_scores(std::string_view word, std::vector<WordToken>& tokens) const;
  void emit_piece(std::string_view piece, size_t start, const Pieces& split, std::vector<WordToken>& tokens) const;
  void emit_unknown(std::string_view piece, size_t start, std::vector<WordToken>& tokens) const;

  const TokenizerSpec& spec_;
  std::unordered_map<std::string_view, int32_t> pieces_;
  std::array<int32_t, 256> byte_ids_{};  // ids of "<0x00>" to "<0xFF>"; byte level: of the bytes' characters
  MergeTable merges_;
  std::vector<int32_t> ranks_;   // by id, from the scores
  size_t longest_ = 0;           // bytes of the longest piece
  TokenMatcher user_defined_;    // pieces that are never cut or merged
  bool cuts_at_spaces_ = false;  // no piece crosses the end of a word: words can be merged one by one
};

}  // namespace wick
