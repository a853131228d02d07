#include "wick/text/tokenizer.h"

#include <algorithm>
#include <cassert>
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

// Places of marks in a text, in order; those that a step is given move as it changes the text.
using Places = std::span<size_t>;

// Takes the places before `end` from the front, and counts them from `start` on.
Places take_places(Places& places, size_t start, size_t end) {
  const auto last = std::ranges::lower_bound(places, end);
  const Places taken = places.first(size_t(last - places.begin()));
  places = places.subspan(taken.size());
  for (size_t& place : taken) place -= start;
  return taken;
}

std::string replace_all(std::string text, std::string_view from, std::string_view to, Places places = {}) {
  std::string out;
  size_t start = 0;
  for (size_t at; (at = text.find(from, start)) != text.npos; start = at + from.size()) {
    for (size_t& place : take_places(places, start, at + 1)) place += out.size();
    out.append(text, start, at - start);
    for (size_t& place : take_places(places, at, at + from.size())) place = out.size() + std::min(place, to.size());
    out += to;
  }
  if (start == 0) return text;
  for (size_t& place : places) place = out.size() + (place - start);
  return out.append(text, start);
}

// A place before the text stays there: what is put in front belongs to the first character.
void put_in_front(std::string& text, std::string_view front, Places places) {
  text.insert(0, front);
  for (size_t& place : places)
    if (place > 0) place += front.size();
}

// Puts rewrite(text) in place of a text. Its part before a place is rewritten by itself to find the place again, but no
// more of it than behind the last start(place), where it can be cut without a change to the result.
template <class Rewrite, class Start>
void rewrite_text(std::string& text, Places places, const Rewrite& rewrite, const Start& start) {
  std::string all = rewrite(text);
  if (all == text) return;
  const std::string_view old = text;
  size_t done = 0, size = 0;  // of the old text, and of what that became
  size_t before = 0;          // the place before
  for (size_t& place : places) {
    const size_t within = incomplete_utf8(old.substr(0, place)), character = place - within;
    const size_t at = start(old, character);
    size += rewrite(old.substr(done, at - done)).size();
    done = at;
    const size_t found = size + rewrite(old.substr(at, character - at)).size() + within;
    place = before = std::clamp(found, before, all.size());
  }
  text = std::move(all);
}

// The last place at or before `at` with a character that joins none before it under NFC or NFKC; the text's start if
// there is none. Characters below U+0300 are such, and all from U+4000 to U+9FFF.
size_t unjoined_start(std::string_view text, size_t at) {
  const auto is_unjoined = [&](uint8_t lead) {
    return lead < 0x80 || (lead >= 0xc2 && lead < 0xcc) || (lead >= 0xe4 && lead <= 0xe9);
  };
  while (at > 0 && (at == text.size() || !is_unjoined(uint8_t(text[at])))) --at;
  return at;
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

  void encode(std::span<const TextPart> parts, Preceding preceding, std::vector<int64_t>& ids,
              std::span<TextMark> marks) const;

  const TokenizerSpec spec_;
  const std::vector<std::string> bytes_;

 private:
  struct Text;
  class Output;

  // A step that is given a text and places in it puts all of them to the output.
  template <class Accepts, class Between>
  void split(std::string_view all, Places places, const TokenMatcher& matcher, const Accepts& accepts,
             const Between& between, Output& out) const;
  std::string normalized(std::string_view text, bool with_prefix, Places places = {}) const;
  void apply(const NormalizerStep& step, std::string& text, Places places) const;
  void encode_between(std::string_view text, Places places, Preceding preceding, Output& out) const;
  void encode_plain(std::string text, Places places, Preceding preceding, Output& out) const;
  void encode_white_space_words(std::string_view text, Places places, Preceding preceding, Output& out) const;
  void encode_metaspace(std::string text, Places places, Preceding preceding, Output& out) const;
  void encode_word(std::string_view text, size_t start, size_t end, Places& places, Output& out) const;

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

// The parts as one valid text, the places in it where control tokens may stand, and those of the marks.
struct Tokenizer::Model::Text {
  Text(std::span<const TextPart> parts, std::span<const TextMark> marks, bool replaces_each_byte) {
    size_t part_start = 0;
    for (const TextPart& part : parts) {
      size_t done = 0;
      for (; places.size() < marks.size() && marks[places.size()].byte < part_start + part.text.size();) {
        const size_t at = marks[places.size()].byte - part_start;
        const size_t within = incomplete_utf8(part.text.substr(0, at));  // bytes of a character around the mark
        text += replace_invalid_utf8(part.text.substr(done, at - within - done), replaces_each_byte);
        places.push_back(text.size() + within);
        done = at - within;
      }
      text += replace_invalid_utf8(part.text.substr(done), replaces_each_byte);
      ends.emplace_back(text.size(), part.parse_special);
      part_start += part.text.size();
    }
    places.resize(marks.size(), text.size());
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
  std::vector<size_t> places;                 // of the marks
};

// The ids, and the marks, which are found in their order.
class Tokenizer::Model::Output {
 public:
  Output(std::vector<int64_t>& ids, std::span<TextMark> marks) : ids_(ids), marks_(marks) {}

  // The token of [start, end) of a text, and the marks at those of its places that are before `end`.
  void put(int64_t id, size_t start, size_t end, Places& places) {
    for (; !places.empty() && places.front() < end; places = places.subspan(1)) put_mark(start < places.front());
    ids_.push_back(id);
  }
  // The marks at a text's places behind its last token.
  void put_rest(Places places) {
    for (size_t i = 0; i < places.size(); ++i) put_mark(false);
  }

  std::vector<WordToken> word;  // kept, so that each word does not ask for memory

 private:
  void put_mark(bool is_inside) {
    TextMark& mark = marks_[marks_put_++];
    mark.tokens = ids_.size();
    mark.is_inside = is_inside;
  }

  std::vector<int64_t>& ids_;
  std::span<TextMark> marks_;
  size_t marks_put_ = 0;
};

// Cuts `all` at the tokens of `matcher` for which accepts(index, start) holds. Calls between(text, places, start) for
// what is between them.
template <class Accepts, class Between>
void Tokenizer::Model::split(std::string_view all, Places places, const TokenMatcher& matcher, const Accepts& accepts,
                             const Between& between, Output& out) const {
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
    between(all.substr(start, first - start), take_places(places, start, first), start);
    out.put(token.id, first, last, places);
    start = at = last;
  }
  between(all.substr(start), take_places(places, start, all.size()), start);
  out.put_rest(places);
}

void Tokenizer::Model::encode(std::span<const TextPart> parts, Preceding preceding, std::vector<int64_t>& ids,
                              std::span<TextMark> marks) const {
  Text text(parts, marks, spec_.replaces_each_byte);
  Output out(ids, marks);
  const auto accepts = [&](int32_t index, size_t start) {
    const AddedToken& token = spec_.added[size_t(index)];
    return !token.is_control || text.allows(start, token.text.size());
  };
  const auto between = [&](std::string_view part, Places places, size_t start) {
    encode_between(part, places, start == 0 ? preceding : Preceding::kControl, out);
  };
  split(text.text, text.places, added_, accepts, between, out);
}

std::string Tokenizer::Model::normalized(std::string_view text, bool with_prefix, Places places) const {
  std::string out(text);
  for (const NormalizerStep& step : spec_.normalizer)
    if (step.kind != NormalizerStep::kPrepend || (with_prefix && !out.empty())) apply(step, out, places);
  return out;
}

void Tokenizer::Model::apply(const NormalizerStep& step, std::string& text, Places places) const {
  const auto rewrite = [&](const auto& how) {
    rewrite_text(text, places, how, [](std::string_view, size_t) { return size_t{0}; });
  };
  switch (step.kind) {
    case NormalizerStep::kNfc:
      return rewrite_text(text, places, normalize_nfc, unjoined_start);
    case NormalizerStep::kNfkc:
      return rewrite_text(text, places, normalize_nfkc, unjoined_start);
    case NormalizerStep::kPrepend:
      return put_in_front(text, step.to, places);
    case NormalizerStep::kReplace:
      return void(text = replace_all(std::move(text), step.from, step.to, places));
    case NormalizerStep::kShorten:
      return rewrite([&](std::string_view old) { return shorten_spaces(old, step.to); });
    case NormalizerStep::kStripLeft: {
      const size_t spaces = space_end(text, 0);
      for (size_t& place : places) place -= std::min(place, spaces);
      return void(text.erase(0, spaces));
    }
    case NormalizerStep::kStripRight:
      text.resize(space_start(text, text.size()));
      for (size_t& place : places) place = std::min(place, text.size());
      return;
    case NormalizerStep::kPrecompiled:
      return rewrite([&](std::string_view old) { return step.map->apply_to_graphemes(old); });
    case NormalizerStep::kSentencePiece:
      return rewrite([&](std::string_view old) { return step.map->apply_with_spaces(old); });
  }
}

// Text between added tokens.
void Tokenizer::Model::encode_between(std::string_view text, Places places, Preceding preceding, Output& out) const {
  if (text.empty()) return out.put_rest(places);
  const bool has_space = spec_.by_scores && preceding == Preceding::kControl && text[0] == ' ';
  const std::string all = normalized(text, preceding != Preceding::kText && !has_space, places);
  const auto between = [&](std::string_view plain, Places places_in, size_t start) {
    encode_plain(std::string(plain), places_in, start == 0 ? preceding : Preceding::kControl, out);
  };
  split(
      all, places, added_normalized_, [](int32_t, size_t) { return true; }, between, out);
}

void Tokenizer::Model::encode_plain(std::string text, Places places, Preceding preceding, Output& out) const {
  if (text.empty()) return out.put_rest(places);
  if (spec_.splits_at_white_space) return encode_white_space_words(text, places, preceding, out);
  if (spec_.is_metaspace) return encode_metaspace(std::move(text), places, preceding, out);
  if (spec_.add_prefix_space && preceding != Preceding::kText && text[0] != ' ') put_in_front(text, " ", places);
  each_word(text, spec_.patterns, [&](std::string_view word) {
    const size_t start = size_t(word.data() - text.data());
    encode_word(text, start, start + word.size(), places, out);
  });
  out.put_rest(places);
}

void Tokenizer::Model::encode_white_space_words(std::string_view text, Places places, Preceding preceding,
                                                Output& out) const {
  for (size_t at = space_end(text, 0); at < text.size();) {
    size_t end = at;
    while (end < text.size() && !is_space(text, end)) end += character_at(text, end).bytes;
    out.put_rest(take_places(places, 0, at));
    encode_metaspace(std::string(text.substr(at, end - at)), take_places(places, at, end),
                     at == 0 ? preceding : Preceding::kControl, out);
    at = space_end(text, end);
  }
  out.put_rest(places);
}

void Tokenizer::Model::encode_metaspace(std::string text, Places places, Preceding preceding, Output& out) const {
  text = replace_all(std::move(text), " ", kSpacePiece, places);
  const SpacePrefix prefix = spec_.space_prefix;
  const bool wants_prefix = (prefix == SpacePrefix::kAlways && preceding != Preceding::kText) ||
                            (prefix == SpacePrefix::kFirst && preceding == Preceding::kNothing);
  if (wants_prefix && !text.starts_with(kSpacePiece)) put_in_front(text, kSpacePiece, places);
  for (size_t start = 0; start < text.size();) {
    const size_t end = spec_.splits_at_spaces ? std::min(text.find(kSpacePiece, start + 1), text.size()) : text.size();
    encode_word(text, start, end, places, out);
    start = end;
  }
  out.put_rest(places);
}

void Tokenizer::Model::encode_word(std::string_view text, size_t start, size_t end, Places& places, Output& out) const {
  out.word.clear();
  const std::string_view word = text.substr(start, end - start);
  unigram_ ? unigram_->encode(word, out.word) : bpe_->encode(word, out.word);
  for (const WordToken& token : out.word) out.put(token.id, start + token.start, start + token.end, places);
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
  return encode(parts, options, {});
}

std::vector<int64_t> Tokenizer::encode(std::span<const TextPart> parts, const EncodeOptions& options,
                                       std::span<TextMark> marks) const {
  assert(std::ranges::is_sorted(marks, {}, &TextMark::byte) && (marks.empty() || !options.add_special));
  size_t total = 0;
  for (const TextPart& part : parts) total += part.text.size();
  check(total <= kMaxTextBytes, "text: expected at most {} bytes, found {}; cut it up", kMaxTextBytes, total);
  const TokenizerSpec& spec = model_->spec_;
  std::vector<int64_t> ids;
  if (options.add_special) ids = spec.before;
  model_->encode(parts, options.preceding, ids, marks);
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

const std::map<std::string, std::string>& Tokenizer::chat_templates() const { return model_->spec_.chat_templates; }
const std::map<std::string, std::string>& Tokenizer::special_texts() const { return model_->spec_.special_texts; }
TokenizerArrays Tokenizer::arrays(int64_t rows) const { return arrays_of_spec(model_->spec_, rows); }

}  // namespace wick
