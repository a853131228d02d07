// A unigram language model over pieces (Kudo, "Subword regularization", 2018): of all ways to cut a text into pieces it
// takes the one whose scores, logarithms of probabilities, have the largest sum (Viterbi).
#pragma once

#include <string_view>
#include <vector>

#include "wick/text/token_matcher.h"
#include "wick/text/tokenizer_spec.h"

namespace wick {

class Unigram {
 public:
  // Throws Error that names the file if there is no unknown token, or two pieces are spelt alike.
  explicit Unigram(const TokenizerSpec& spec);

  // Appends the tokens of `text`, which is UTF-8. A character without a piece of its own may become the unknown token,
  // for ten less than the lowest score; neighbouring unknown tokens are one. O(n) for n bytes and pieces of bounded
  // length.
  void encode(std::string_view text, std::vector<WordToken>& tokens) const;

 private:
  TokenMatcher pieces_;  // values are ids
  std::vector<double> scores_;
  double unknown_score_ = 0;
  int32_t unknown_ = 0;
  bool sums_in_f32_ = false;  // as SentencePiece does; HF tokenizers sums in f64
};

}  // namespace wick
