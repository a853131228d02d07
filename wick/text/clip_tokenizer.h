// CLIP's tokenizer: lower-cased byte-pair encoding of words (Radford et al., "Learning transferable visual models from
// natural language supervision", 2021; byte-level BPE as in GPT-2).
//
// A folder holds vocab.json (token -> id, where `</w>` ends a word), merges.txt (a header line, then one pair a line,
// the first to be applied first), and tokenizer_config.json and special_tokens_map.json for the special tokens. Since
// transformers 5 a tokenizer.json stands for the first two.
// Ids are those of transformers' CLIPTokenizerFast. Its slow version differs where ftfy is not installed: it then
// splits between CJK characters and drops control characters.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wick/text/merge.h"
#include "wick/text/token_matcher.h"

namespace wick {

class ClipTokenizer {
 public:
  static constexpr size_t kMaxTextBytes = size_t{1} << 20;

  // A folder, or a tokenizer.json with the others beside it.
  static ClipTokenizer load(const std::filesystem::path& path);

  // The same with another id for padding, which texts still spell as they did.
  ClipTokenizer padded_with(int64_t id) const;

  // Exactly max_length() ids: start, the text's tokens as far as there is room, end, padding. Special tokens written
  // out in the text become their ids, the padding token among them: OpenCLIP's tokenizer pads with "!".
  std::vector<int64_t> encode(std::string_view text) const;
  // The same, neither cut nor padded; and without start and end.
  std::vector<int64_t> encode_whole(std::string_view text) const;
  std::vector<int64_t> encode_bare(std::string_view text) const;
  // encode()'s form of such tokens.
  std::vector<int64_t> framed(std::vector<int64_t> bare) const;
  // Several chunks of max_length() ids, each with max_length() - 2 of those tokens, as _get_input_ids() of
  // library/strategy_base.py in kohya-ss/sd-scripts cuts captions: the end token follows the last token, or the last
  // chunk; with another id for padding than the end's, each full chunk has an end and each empty one begins with it.
  std::vector<int64_t> chunked(std::vector<int64_t> bare, int64_t chunks) const;
  // The number of those: encode() cuts the ones beyond max_length().
  int64_t length(std::string_view text) const { return int64_t(encode_whole(text).size()); }

  int64_t size() const { return size_; }  // ids are below this
  int64_t max_length() const { return max_length_; }
  int64_t bos_id() const { return bos_; }
  int64_t eos_id() const { return eos_; }
  int64_t pad_id() const { return pad_; }

 private:
  class Vocabulary;

  ClipTokenizer() = default;
  void load_parts(const std::filesystem::path& folder);
  void load_whole(const std::filesystem::path& file);
  void load_specials(const std::filesystem::path& folder, const Vocabulary& vocabulary);
  void load_merges(const std::filesystem::path& path, const Vocabulary& vocabulary);
  void add_merge(const std::pair<std::string, std::string>& merge, const Vocabulary& vocabulary,
                 const std::string& where);
  std::vector<int64_t> tokens(std::string_view text, size_t most) const;  // with the start token, without the end token
  void encode_words(std::string_view text, size_t most, std::vector<int64_t>& ids) const;
  void encode_word(std::string_view word, std::vector<int64_t>& ids) const;

  std::array<int32_t, 256> inner_byte_{}, last_byte_{};  // a byte's id within a word, and at its end
  MergeTable merges_;
  TokenMatcher specials_;  // values are ids
  int64_t size_ = 0, max_length_ = 77, bos_ = 0, eos_ = 0, pad_ = 0, unknown_ = 0;
};

}  // namespace wick
