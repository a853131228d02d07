// T5's tokenizer (Raffel et al., "Exploring the limits of transfer learning", 2020): a unigram model of SentencePiece
// (text/unigram.h) behind its character map (text/precompiled_map.h).
//
// A tokenizer.json, in any form that transformers has written over the years, gives the ids of HF tokenizers 0.22; a
// spiece.model those of SentencePiece 0.2 and the end token. They differ (docs/tokenizers.md): SentencePiece takes
// "</s>" and "<extra_id_0>" in a text as text, for instance, and a tokenizer.json as those tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "wick/text/tokenizer.h"

namespace wick {

class T5Tokenizer {
 public:
  static constexpr size_t kMaxTextBytes = size_t{1} << 20;
  static constexpr int64_t kPad = 0;

  // A folder that holds tokenizer.json or spiece.model, of which the first wins, or such a file itself. Throws Error
  // that names the file, also for a tokenizer of another kind.
  static T5Tokenizer load(const std::filesystem::path& path);

  // Ids with the end token, neither cut nor padded. Throws Error for text that is not UTF-8 or too long.
  std::vector<int64_t> encode(std::string_view text) const;
  std::vector<int64_t> encode_bare(std::string_view text) const;  // without it
  // A text's with the end token, cut or padded to `length`, which is at least 1.
  std::vector<int64_t> framed(std::vector<int64_t> bare, int64_t length) const;
  // Exactly `length` of them: the text is cut to length - 1, and kPad stands behind the end token.
  std::vector<int64_t> encode(std::string_view text, int64_t length) const;
  // The number of ids with the end token.
  int64_t length(std::string_view text) const { return int64_t(encode(text).size()); }

  int64_t vocabulary() const { return tokenizer_.size(); }  // ids are below this; models have more rows
  int64_t end_id() const { return end_; }

 private:
  T5Tokenizer(Tokenizer tokenizer, int64_t end) : tokenizer_(std::move(tokenizer)), end_(end) {}

  Tokenizer tokenizer_;
  int64_t end_;
};

}  // namespace wick
