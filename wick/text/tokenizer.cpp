#include "wick/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "wick/core/error.h"
#include "wick/text/bpe.h"
#include "wick/text/token_matcher.h"
#include "wick/text/tokenizer_spec.h"
#include "wick/text/unicode.h"
#include "wick/text/unigram.h"

namespace wick {

std::optional<int64_t> find_token(const TokenizerSpec& spec, std::string_view text) {
  const auto found = std::ranges::find(spec.tokens, text, &Token::text);
  return found == spec.tokens.end() || text.empty() ? std::nullopt : std::optional(found - spec.tokens.begin());
}

namespace {

namespace fs = std::filesystem;

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  std::string out;
  size_t start = 0;
  for (size_t at; (at = text.find(from, start)) != text.npos; start = at + from.size()) {
    out.append(text, start, at - start);
    out += to;
  }
  if (start == 0) return text;
  return out.append(text, start);
}

// The bytes that each token stands for in a text.
std::vector<std::string> token_bytes(const TokenizerSpec& spec) {
  std::vector<std::string> all;
  for (const Token& token : spec.tokens) {
    if (token.type == TokenType::kByte)
      all.emplace_back(1, char(std::stoi(token.text.substr(3, 2), nullptr, 16)));
    else if (spec.is_byte_level && token.is_piece)
      all.push_back(bytes_of_characters(token.text).value_or(token.text));
    else if (spec.is_byte_level || token.type == TokenType::kControl)
      all.push_back(token.text);
    else
      all.push_back(replace_all(token.text, kSpacePiece, " "));
  }
  return all;
}

// The spelling of each token in the text that reaches the model.
std::vector<std::string> token_spellings(const TokenizerSpec& spec) {
  std::vector<std::string> all;
  for (const Token& token : spec.tokens)
    all.push_back(spec.is_byte_level ? bytes_of_characters(token.text).value_or("") : token.text);
  return all;
}

// Calls `found` with each word that the patterns, one after the other, cut out of `text`.
template <class Found>
void each_word(std::string_view text, std::span<const WordPattern> patterns, const Found& found) {
  if (patterns.empty()) return found(text);
  for (size_t at = 0; at < text.size();) {
    const size_t end = word_end(patterns[0], text, at);
    each_word(text.substr(at, end - at), patterns.subspan(1), found);
    at = end;
  }
}

bool is_space(std::string_view text, size_t at) { return character_at(text, at).classes & Character::kSpace; }

// The end of the white space that starts at `at`, and the start of that which ends at `at`, not before `least`.
size_t space_end(std::string_view text, size_t at) {
  while (at < text.size() && is_space(text, at)) at += character_at(text, at).bytes;
  return at;
}
size_t space_start(std::string_view text, size_t at, size_t least = 0) {
  while (at > least) {
    size_t before = at - 1;
    while ((text[before] & 0xc0) == 0x80) --before;
    if (!is_space(text, before)) break;
    at = before;
  }
  return at;
}

// Puts `to` in place of each run of two spaces or more.
std::string shorten_spaces(std::string_view text, std::string_view to) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t run = std::min(text.find_first_not_of(' ', at), text.size()) - at;
    out += run >= 2 ? to : text.substr(at, 1);
    at += std::max<size_t>(run, 1);
  }
  return out;
}

}  // namespace

class Tokenizer::Model {
 public:
  explicit Model(TokenizerSpec spec);

  void encode(std::span<const TextPart> parts, Preceding preceding, std::vector<int64_t>& ids) const;

  const TokenizerSpec spec_;
  const std::vector<std::string> bytes_;

 private:
  struct Text;

  template <class Accepts, class Between, class Found>
  void split(std::string_view all, const TokenMatcher& matcher, const Accepts& accepts, const Between& between,
             const Found& found) const;
  std::string normalized(std::string_view text, bool with_prefix) const;
  void encode_between(std::string_view text, Preceding preceding, std::vector<int64_t>& ids) const;
  void encode_plain(std::string text, Preceding preceding, std::vector<int64_t>& ids) const;
  void encode_metaspace(std::string text, Preceding preceding, std::vector<int64_t>& ids) const;
  void encode_word(std::string_view word, std::vector<int64_t>& ids) const {
    unigram_ ? unigram_->encode(word, ids) : bpe_->encode(word, ids);
  }

  const std::vector<std::string> spellings_;
  std::optional<Bpe> bpe_;  // one of the two
  std::optional<Unigram> unigram_;
  TokenMatcher added_, added_normalized_;  // values are indices into spec_.added
};

Tokenizer::Model::Model(TokenizerSpec spec)
    : spec_(std::move(spec)), bytes_(token_bytes(spec_)), spellings_(token_spellings(spec_)) {
  if (spec_.model == TokenizerModel::kUnigram)
    unigram_.emplace(spec_);
  else
    bpe_.emplace(spec_, spellings_);
  std::vector<std::pair<std::string, int32_t>> added, added_normalized;
  for (size_t i = 0; i < spec_.added.size(); ++i) {
    const AddedToken& token = spec_.added[i];
    const bool is_late = token.is_normalized && !token.is_control;
    const std::string text = is_late ? normalized(token.text, true) : token.text;
    if (!text.empty()) (is_late ? added_normalized : added).emplace_back(text, int32_t(i));
  }
  added_ = TokenMatcher(std::move(added));
  added_normalized_ = TokenMatcher(std::move(added_normalized));
}

// The parts as one valid text, and the places in it where control tokens may stand.
struct Tokenizer::Model::Text {
  Text(std::span<const TextPart> parts, bool replaces_each_byte) {
    for (const TextPart& part : parts) {
      text += replace_invalid_utf8(part.text, replaces_each_byte);
      ends.emplace_back(text.size(), part.parse_special);
    }
  }

  // Whether all of [start, start + size) lies in parts with control tokens.
  bool allows(size_t start, size_t size) const {
    const auto ends_behind = [&](const auto& end) { return end.first <= start; };
    auto part = std::partition_point(ends.begin(), ends.end(), ends_behind);
    while (part != ends.end() && part->second && part->first < start + size) ++part;
    return part != ends.end() && part->second;
  }

  std::string text;
  std::vector<std::pair<size_t, bool>> ends;  // of each part, with its parse_special
};

// Cuts `all` at the tokens of `matcher` for which accepts(index, start) holds: calls between(text, start) and
// found(id).
template <class Accepts, class Between, class Found>
void Tokenizer::Model::split(std::string_view all, const TokenMatcher& matcher, const Accepts& accepts,
                             const Between& between, const Found& found) const {
  size_t start = 0;  // of the text behind the last token
  for (size_t at = 0; at < all.size() && !matcher.empty();) {
    const auto match = matcher.longest(all, at, [&](int32_t index) { return accepts(index, at); });
    if (match.size == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = spec_.added[size_t(match.value)];
    size_t first = at, last = at + match.size;
    if (token.strip_left) first = space_start(all, first, start);
    if (token.strip_right) last = space_end(all, last);
    between(all.substr(start, first - start), start);
    found(token.id);
    start = at = last;
  }
  between(all.substr(start), start);
}

void Tokenizer::Model::encode(std::span<const TextPart> parts, Preceding preceding, std::vector<int64_t>& ids) const {
  const Text text(parts, spec_.replaces_each_byte);
  const auto accepts = [&](int32_t index, size_t start) {
    const AddedToken& token = spec_.added[size_t(index)];
    return !token.is_control || text.allows(start, token.text.size());
  };
  split(
      text.text, added_, accepts,
      [&](std::string_view between, size_t start) {
        encode_between(between, start == 0 ? preceding : Preceding::kControl, ids);
      },
      [&](int64_t id) { ids.push_back(id); });
}

std::string Tokenizer::Model::normalized(std::string_view text, bool with_prefix) const {
  std::string out(text);
  for (const NormalizerStep& step : spec_.normalizer) {
    if (step.kind == NormalizerStep::kNfc) out = normalize_nfc(out);
    if (step.kind == NormalizerStep::kNfkc) out = normalize_nfkc(out);
    if (step.kind == NormalizerStep::kPrepend && with_prefix && !out.empty()) out.insert(0, step.to);
    if (step.kind == NormalizerStep::kReplace) out = replace_all(std::move(out), step.from, step.to);
    if (step.kind == NormalizerStep::kShorten) out = shorten_spaces(out, step.to);
    if (step.kind == NormalizerStep::kStripLeft) out.erase(0, space_end(out, 0));
    if (step.kind == NormalizerStep::kStripRight) out.resize(space_start(out, out.size()));
    if (step.kind == NormalizerStep::kPrecompiled) out = step.map->apply_to_graphemes(out);
    if (step.kind == NormalizerStep::kSentencePiece) out = step.map->apply_with_spaces(out);
  }
  return out;
}

// Text between added tokens.
void Tokenizer::Model::encode_between(std::string_view text, Preceding preceding, std::vector<int64_t>& ids) const {
  if (text.empty()) return;
  const bool has_space = spec_.by_scores && preceding == Preceding::kControl && text[0] == ' ';
  const std::string all = normalized(text, preceding != Preceding::kText && !has_space);
  split(
      all, added_normalized_, [](int32_t, size_t) { return true; },
      [&](std::string_view plain, size_t start) {
        encode_plain(std::string(plain), start == 0 ? preceding : Preceding::kControl, ids);
      },
      [&](int64_t id) { ids.push_back(id); });
}

void Tokenizer::Model::encode_plain(std::string text, Preceding preceding, std::vector<int64_t>& ids) const {
  if (text.empty()) return;
  if (spec_.splits_at_white_space) {
    for (size_t at = space_end(text, 0); at < text.size();) {
      size_t end = at;
      while (end < text.size() && !is_space(text, end)) end += character_at(text, end).bytes;
      encode_metaspace(text.substr(at, end - at), at == 0 ? preceding : Preceding::kControl, ids);
      at = space_end(text, end);
    }
    return;
  }
  if (spec_.is_metaspace) return encode_metaspace(std::move(text), preceding, ids);
  if (spec_.add_prefix_space && preceding != Preceding::kText && text[0] != ' ') text.insert(0, 1, ' ');
  each_word(text, spec_.patterns, [&](std::string_view word) { encode_word(word, ids); });
}

void Tokenizer::Model::encode_metaspace(std::string text, Preceding preceding, std::vector<int64_t>& ids) const {
  text = replace_all(std::move(text), " ", kSpacePiece);
  const SpacePrefix prefix = spec_.space_prefix;
  const bool wants_prefix = (prefix == SpacePrefix::kAlways && preceding != Preceding::kText) ||
                            (prefix == SpacePrefix::kFirst && preceding == Preceding::kNothing);
  if (wants_prefix && !text.starts_with(kSpacePiece)) text.insert(0, kSpacePiece);
  if (!spec_.splits_at_spaces) return encode_word(text, ids);
  const std::string_view all = text;
  for (size_t start = 0; start < all.size();) {
    const size_t end = std::min(all.find(kSpacePiece, start + 1), all.size());
    encode_word(all.substr(start, end - start), ids);
    start = end;
  }
}

Tokenizer::Tokenizer(TokenizerSpec spec) : model_(std::make_shared<const Model>(std::move(spec))) {}

Tokenizer Tokenizer::load(const fs::path& folder, bool with_scores) {
  return Tokenizer(read_tokenizer_folder(folder, with_scores));
}

Tokenizer Tokenizer::from_arrays(const TokenizerArrays& arrays, const std::string& source) {
  return Tokenizer(spec_of_arrays(arrays, source));
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const TextPart part{text, options.parse_special};
  return encode(std::span(&part, 1), options);
}

std::vector<int64_t> Tokenizer::encode(std::span<const TextPart> parts, const EncodeOptions& options) const {
  size_t total = 0;
  for (const TextPart& part : parts) total += part.text.size();
  check(total <= kMaxTextBytes, "text: expected at most {} bytes, found {}; cut it up", kMaxTextBytes, total);
  const TokenizerSpec& spec = model_->spec_;
  std::vector<int64_t> ids;
  if (options.add_special) ids = spec.before;
  model_->encode(parts, options.preceding, ids);
  if (options.add_special) ids.insert(ids.end(), spec.after.begin(), spec.after.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int64_t> ids, const DecodeOptions& options) const {
  TokenStream stream(*this, options);
  std::string text;
  for (int64_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

std::string TokenStream::push(int64_t id) {
  if (options_.skip_special && tokenizer_.is_control(id)) return "";
  std::string bytes = tokenizer_.bytes(id);
  if (!bytes.empty() && std::exchange(options_.at_start, false)) {
    const bool strips = tokenizer_.model_->spec_.strips_leading_space;
    if (strips && bytes[0] == ' ') bytes.erase(0, 1);
  }
  held_ += bytes;
  const std::string_view held = held_;
  const size_t whole = held.size() - incomplete_utf8(held);
  const std::string text = replace_invalid_utf8(held.substr(0, whole));
  held_.erase(0, whole);
  return text;
}

std::string TokenStream::finish() { return replace_invalid_utf8(std::exchange(held_, "")); }

int64_t Tokenizer::size() const { return int64_t(model_->spec_.tokens.size()); }

std::optional<int64_t> Tokenizer::id_of(std::string_view piece) const { return find_token(model_->spec_, piece); }

std::string_view Tokenizer::piece(int64_t id) const {
  check(id >= 0 && id < kMaxTokens, "token {}: expected an id from 0 to {}", id, kMaxTokens - 1);
  return id < size() ? std::string_view(model_->spec_.tokens[size_t(id)].text) : std::string_view();
}

std::string Tokenizer::bytes(int64_t id) const { return piece(id).empty() ? "" : model_->bytes_[size_t(id)]; }

bool Tokenizer::is_control(int64_t id) const {
  return !piece(id).empty() && model_->spec_.tokens[size_t(id)].type == TokenType::kControl;
}

std::optional<int64_t> Tokenizer::bos_id() const { return model_->spec_.bos; }
std::optional<int64_t> Tokenizer::eos_id() const { return model_->spec_.eos; }
const std::vector<int64_t>& Tokenizer::stop_ids() const { return model_->spec_.stops; }

const std::string& Tokenizer::chat_template() const { return model_->spec_.chat_template; }
TokenizerArrays Tokenizer::arrays(int64_t rows) const { return arrays_of_spec(model_->spec_, rows); }

}  // namespace wick
