#include "wick/text/t5_tokenizer.h"

#include <algorithm>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/text/tokenizer_spec.h"
#include "wick/text/unicode.h"

namespace wick {

namespace fs = std::filesystem;

T5Tokenizer T5Tokenizer::load(const fs::path& path) {
  constexpr size_t kMaxFileBytes = size_t{64} << 20;
  fs::path file = path;
  if (fs::is_directory(path)) file /= fs::exists(path / "tokenizer.json") ? "tokenizer.json" : "spiece.model";
  check(fs::exists(file), "{}: no such file; a T5 tokenizer is a tokenizer.json, a spiece.model, or a folder with one",
        file.string());
  const std::string bytes = read_file(file, kMaxFileBytes), source = file.string();
  TokenizerSpec spec = file.extension() == ".json" ? parse_tokenizer_json(bytes, source, TokenizerModel::kUnigram)
                                                   : parse_sentencepiece(bytes, source, TokenizerModel::kUnigram);
  check(spec.before.empty() && spec.after.size() == 1,
        "{}: expected the tokenizer of T5, whose texts end with one token", source);
  const int64_t end = spec.after[0];
  return {Tokenizer(std::move(spec)), end};
}

std::vector<int64_t> T5Tokenizer::encode(std::string_view text) const {
  check_text(text, kMaxTextBytes);
  return tokenizer_.encode(text, {.parse_special = true});
}

std::vector<int64_t> T5Tokenizer::encode_bare(std::string_view text) const {
  std::vector<int64_t> ids = encode(text);
  ids.pop_back();
  return ids;
}

std::vector<int64_t> T5Tokenizer::encode(std::string_view text, int64_t length) const {
  return framed(encode_bare(text), length);
}

std::vector<int64_t> T5Tokenizer::framed(std::vector<int64_t> ids, int64_t length) const {
  check(length >= 1, "text: expected a length of at least 1, found {}", length);
  ids.resize(std::min(ids.size(), size_t(length - 1)));
  ids.push_back(end_);
  ids.resize(size_t(length), kPad);
  return ids;
}

}  // namespace wick
