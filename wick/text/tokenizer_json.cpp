// tokenizer.json, as HF tokenizers writes it: normalizer, pre_tokenizer, model, post_processor, decoder, added_tokens.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <unordered_map>

#include "wick/core/error.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"
#include "wick/text/tokenizer_spec.h"

namespace wick {
namespace {

using Json = nlohmann::json;

constexpr size_t kLongestReplacement = 64;

[[noreturn]] void fail_unknown(const std::string& where, std::string_view what, std::string_view known) {
  fail("{}: {} is not supported; Wick knows {}", where, what, known);
}

template <class T>
T get_or(const Json& object, const char* key, T otherwise, const std::string& where) {
  const Json* found = find_member(object, key);
  return found ? as<T>(*found, where + "." + key) : otherwise;
}

// Calls `visit(component, where, type)` for a component, or for each one of a Sequence; nullptr is none.
void each_component(const Json* component, const char* list, const std::string& where,
                    const std::function<void(const Json&, const std::string&, const std::string&)>& visit,
                    int depth = 0) {
  if (!component) return;
  const auto type = get<std::string>(*component, "type", where);
  if (type != "Sequence") return visit(*component, where, type);
  constexpr int kDeepest = 8;
  check(depth < kDeepest, "{}: sequences within sequences, more than {} deep", where, kDeepest);
  for (const Json& part : as_list(member(*component, list, where), where + "." + list))
    each_component(&part, list, where, visit, depth + 1);
}

std::string replacement(const Json& component, const char* key, const std::string& where) {
  const auto text = get<std::string>(component, key, where);
  check(text.size() <= kLongestReplacement, "{}.{}: expected at most {} bytes, found {}", where, key,
        kLongestReplacement, text.size());
  return text;
}

void read_replace(TokenizerSpec& spec, const Json& step, const std::string& where) {
  const Json& pattern = member(step, "pattern", where);
  const std::string to = replacement(step, "content", where);
  if (pattern == Json{{"Regex", " {2,}"}}) return spec.normalizer.push_back({NormalizerStep::kShorten, "", to});
  if (!pattern.is_object() || !find_member(pattern, "String"))
    fail_unknown(where, "a Replace of a pattern", "Strings, and the pattern of two spaces or more");
  const auto from = get<std::string>(pattern, "String", where);
  check(!from.empty(), "{}: Replace of an empty text", where);
  spec.normalizer.push_back({NormalizerStep::kReplace, from, to});
}

void read_normalizer(TokenizerSpec& spec, const Json& json) {
  const auto visit = [&](const Json& step, const std::string& where, const std::string& type) {
    if (type == "NFC") {
      spec.normalizer.push_back({NormalizerStep::kNfc, "", ""});
    } else if (type == "NFKC") {
      spec.normalizer.push_back({NormalizerStep::kNfkc, "", ""});
    } else if (type == "Prepend") {
      spec.normalizer.push_back({NormalizerStep::kPrepend, "", replacement(step, "prepend", where)});
    } else if (type == "Replace") {
      read_replace(spec, step, where);
    } else if (type == "Strip") {
      if (get<bool>(step, "strip_left", where)) spec.normalizer.push_back({NormalizerStep::kStripLeft});
      if (get<bool>(step, "strip_right", where)) spec.normalizer.push_back({NormalizerStep::kStripRight});
    } else if (type == "Precompiled") {
      const std::string key = "precompiled_charsmap";
      const auto map = PrecompiledMap::parse_base64(get<std::string>(step, key, where), where + "." + key);
      spec.normalizer.push_back({.kind = NormalizerStep::kPrecompiled, .map = std::make_shared<PrecompiledMap>(map)});
    } else {
      fail_unknown(where, quote(type), "NFC, NFKC, Precompiled, Prepend, Replace, Strip and Sequence");
    }
  };
  each_component(find_member(json, "normalizer"), "normalizers", spec.source + ": normalizer", visit);
}

void read_metaspace(TokenizerSpec& spec, const Json& step, const std::string& where) {
  const auto symbol = get<std::string>(step, "replacement", where);
  if (symbol != kSpacePiece) fail_unknown(where, "Metaspace with " + quote(symbol), "U+2581");
  const bool adds = get_or(step, "add_prefix_space", true, where);
  const auto scheme = get_or<std::string>(step, "prepend_scheme", adds ? "always" : "never", where);
  if (scheme != "always" && scheme != "first" && scheme != "never")
    fail_unknown(where, "prepend_scheme " + quote(scheme), "always, first and never");
  spec.is_metaspace = true;
  spec.space_prefix = scheme == "always"  ? SpacePrefix::kAlways
                      : scheme == "first" ? SpacePrefix::kFirst
                                          : SpacePrefix::kNever;
  spec.splits_at_spaces = get_or(step, "split", true, where);
}

// Isolated keeps both the matches of the pattern and the text between them; so does inverted Removed, for patterns that
// match all.
void read_split(TokenizerSpec& spec, const Json& step, const std::string& where) {
  const Json& pattern = member(step, "pattern", where);
  if (!pattern.is_object() || !find_member(pattern, "Regex"))
    fail_unknown(where, "a Split at a String", "regular expressions");
  const auto regex = get<std::string>(pattern, "Regex", where);
  const auto known = word_pattern_of_regex(regex);
  if (!known)
    fail_unknown(where, "the pattern " + quote(regex), "those of GPT-2, Llama 3 (and GPT-4), Qwen 2 and Tekken");
  const auto behavior = get<std::string>(step, "behavior", where);
  const bool inverts = get_or(step, "invert", false, where);
  if (behavior != (inverts ? "Removed" : "Isolated"))
    fail_unknown(where, "the behavior " + quote(behavior), "Isolated");
  spec.patterns.push_back(*known);
}

void read_pre_tokenizer(TokenizerSpec& spec, const Json& json) {
  const auto visit = [&](const Json& step, const std::string& where, const std::string& type) {
    const bool is_first = spec.patterns.empty() && !spec.is_metaspace && !spec.is_byte_level;
    check(!spec.is_metaspace && !spec.is_byte_level, "{}: {} behind the step that writes spaces or bytes", where,
          quote(type));
    if (type == "ByteLevel") {
      spec.is_byte_level = true;
      spec.add_prefix_space = get<bool>(step, "add_prefix_space", where);
      if (spec.add_prefix_space && !is_first) fail_unknown(where, "add_prefix_space behind a Split", "it alone");
      if (get_or(step, "use_regex", true, where)) spec.patterns.push_back(WordPattern::kGpt2);
    } else if (type == "WhitespaceSplit") {
      if (!is_first) fail_unknown(where, "WhitespaceSplit behind other steps", "it before a Metaspace");
      spec.splits_at_white_space = true;
    } else if (type == "Metaspace") {
      if (!is_first) fail_unknown(where, "Metaspace behind other steps", "it alone, and behind a WhitespaceSplit");
      read_metaspace(spec, step, where);
    } else if (type == "Split") {
      read_split(spec, step, where);
    } else if (type == "Digits") {
      if (!get_or(step, "individual_digits", false, where))
        fail_unknown(where, "Digits in groups", "individual_digits");
      spec.patterns.push_back(WordPattern::kDigits);
    } else {
      fail_unknown(where, quote(type), "ByteLevel, Digits, Metaspace, Split, WhitespaceSplit and Sequence");
    }
    check(spec.patterns.size() <= 4, "{}: more than four patterns", where);
  };
  const std::string where = spec.source + ": pre_tokenizer";
  each_component(find_member(json, "pre_tokenizer"), "pretokenizers", where, visit);
  if (!spec.patterns.empty() && !spec.is_byte_level) fail_unknown(where, "a Split without ByteLevel", "both together");
  if (spec.splits_at_white_space && spec.space_prefix != SpacePrefix::kAlways)
    fail_unknown(where, "WhitespaceSplit alone", "it before a Metaspace with prepend_scheme \"always\"");
}

using Ids = std::unordered_map<std::string_view, int32_t>;

// `ids` refers to keys of the JSON.
Ids read_vocabulary(TokenizerSpec& spec, const Json& model, const std::string& where) {
  const Json& vocab = as_object(member(model, "vocab", where), where + ".vocab", "an object of tokens and ids");
  Ids ids;
  ids.reserve(vocab.size());
  spec.tokens.reserve(std::min<size_t>(vocab.size() + 512, size_t(kMaxTokens)));
  for (const auto& [text, value] : vocab.items()) {
    if (!value.is_number_integer()) fail_json(where + ".vocab: " + quote(text), "an id", value);
    const auto id = as<int64_t>(value, where);
    const bool is_byte = spec.byte_fallback && is_byte_name(text);
    put_token(spec, id, {text, is_byte ? TokenType::kByte : TokenType::kNormal, true});
    if (!text.empty()) ids.emplace(text, int32_t(id));
  }
  return ids;
}

void read_merges(TokenizerSpec& spec, const Json& model, const Ids& ids, const std::string& where) {
  const std::string place = where + ".merges";
  const Json& merges = as_list(member(model, "merges", where), place);
  spec.merges.reserve(merges.size());
  for (const Json& merge : merges) {
    const auto [left, right] = merge_of_json(merge, place);
    const auto id_of = [&](const std::string& text) {
      const auto found = ids.find(text);
      if (found == ids.end()) fail("{}: {} is not in the vocabulary", place, quote(text));
      return found->second;
    };
    spec.merges.push_back({id_of(left), id_of(right), id_of(left + right)});
  }
}

void read_bpe(TokenizerSpec& spec, const Json& model, const std::string& where) {
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!get_or<std::string>(model, affix, "", where).empty()) fail_unknown(where, affix, "BPE without it");
  if (get_or(model, "dropout", 0.0, where) != 0) fail_unknown(where, "dropout", "BPE without it");
  spec.byte_fallback = get_or(model, "byte_fallback", false, where);
  spec.fuse_unknown = get_or(model, "fuse_unk", false, where);
  spec.ignore_merges = get_or(model, "ignore_merges", false, where);
  const Ids ids = read_vocabulary(spec, model, where);
  read_merges(spec, model, ids, where);
  if (!find_member(model, "unk_token")) return;
  const auto unknown = get<std::string>(model, "unk_token", where);
  const auto found = ids.find(unknown);
  check(found != ids.end(), "{}.unk_token: {} is not in the vocabulary", where, quote(unknown));
  spec.unknown = found->second;
}

// A number as HF tokenizers has it: serde_json divides its digits by a power of ten, which may be an ulp off. Between
// ways to cut a text whose sums differ by less, as of "00000", this decides.
double as_serde_reads(double exact) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), std::abs(exact), std::chars_format::scientific).ptr;
  uint64_t digits = 0;
  int exponent = 0;
  const char* at = text;
  for (bool is_behind_point = false; *at != 'e'; ++at) {
    if (*at == '.') {
      is_behind_point = true;
      continue;
    }
    digits = digits * 10 + uint64_t(*at - '0');
    exponent -= is_behind_point;
  }
  int power = 0;
  std::from_chars(at + (at[1] == '+' ? 2 : 1), end, power);
  exponent += power;
  const double read =
      exponent < 0 ? double(digits) / std::pow(10.0, -exponent) : double(digits) * std::pow(10.0, exponent);
  return std::copysign(read, exact);
}

// The id of a piece is its place in the list.
void read_unigram(TokenizerSpec& spec, const Json& model, const std::string& where) {
  if (get_or(model, "byte_fallback", false, where)) fail_unknown(where, "byte_fallback", "Unigram without it");
  const std::string place = where + ".vocab";
  for (const Json& piece : as_list(member(model, "vocab", where), place)) {
    if (!piece.is_array() || piece.size() != 2) fail_json(place, "a list of pieces, each with its score", piece);
    const auto text = as<std::string>(piece[0], place);
    check(!text.empty(), "{}: piece {}: expected a text, found none", place, spec.tokens.size());
    put_token(spec, int64_t(spec.tokens.size()),
              {text, TokenType::kNormal, true, as_serde_reads(as<double>(piece[1], place))});
  }
  const auto unknown = get<int64_t>(model, "unk_id", where);
  check(unknown >= 0 && unknown < int64_t(spec.tokens.size()), "{}.unk_id: no piece has the id {}", where, unknown);
  spec.unknown = unknown;
}

void read_model(TokenizerSpec& spec, const Json& json) {
  const std::string where = spec.source + ": model";
  const Json& model = as_object(member(json, "model", spec.source), where);
  const bool is_unigram = spec.model == TokenizerModel::kUnigram;
  // The oldest files do not name the type.
  const char* const unnamed = model.contains("unk_id") ? "Unigram" : "BPE";
  const std::string wanted = is_unigram ? "Unigram" : "BPE";
  const auto type = get_or<std::string>(model, "type", unnamed, where);
  if (type != wanted) fail_unknown(where, quote(type), wanted + (is_unigram ? ", as T5's is" : ""));
  is_unigram ? read_unigram(spec, model, where) : read_bpe(spec, model, where);
}

// The ids around a text: `single` of a TemplateProcessing.
void read_template(TokenizerSpec& spec, const Json& step, const std::string& where) {
  bool is_behind = false;
  for (const Json& item : as_list(member(step, "single", where), where + ".single")) {
    if (item.is_object() && find_member(item, "Sequence")) {
      is_behind = true;
      continue;
    }
    const Json& special = member(item, "SpecialToken", where + ".single");
    const auto name = get<std::string>(special, "id", where + ".single");
    const Json& entry = member(member(step, "special_tokens", where), name, where + ".special_tokens");
    const Json& ids =
        as_list(member(entry, "ids", where + ".special_tokens"), where + ".special_tokens", "a list of ids");
    for (const Json& id : ids) {
      const auto value = as<int64_t>(id, where + ".special_tokens");
      check(value >= 0 && value < int64_t(spec.tokens.size()), "{}: {}: no token has the id {}", where, quote(name),
            value);
      (is_behind ? spec.after : spec.before).push_back(value);
    }
  }
}

void read_post_processor(TokenizerSpec& spec, const Json& json) {
  const auto visit = [&](const Json& step, const std::string& where, const std::string& type) {
    if (type == "TemplateProcessing")
      read_template(spec, step, where);
    else if (type != "ByteLevel")  // which moves offsets, not ids
      fail_unknown(where, quote(type), "ByteLevel, TemplateProcessing and Sequence");
  };
  each_component(find_member(json, "post_processor"), "processors", spec.source + ": post_processor", visit);
}

// Decoding follows from the tokens themselves; only the removal of the space before a text is read here.
void read_decoder(TokenizerSpec& spec, const Json& json) {
  const auto visit = [&](const Json& step, const std::string& where, const std::string& type) {
    if (type == "Strip" && get<std::string>(step, "content", where) == " ")
      spec.strips_leading_space = get<int64_t>(step, "start", where) > 0;
    else if (type == "Metaspace")
      spec.strips_leading_space = get_or<std::string>(step, "prepend_scheme", "always", where) != "never";
    else if (type != "ByteLevel" && type != "ByteFallback" && type != "Fuse" && type != "Replace")
      fail_unknown(where, quote(type), "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip and Sequence");
  };
  each_component(find_member(json, "decoder"), "decoders", spec.source + ": decoder", visit);
}

void read_added_tokens(TokenizerSpec& spec, const Json& json) {
  const Json* tokens = find_member(json, "added_tokens");
  if (!tokens) return;
  const std::string where = spec.source + ": added_tokens";
  for (const Json& token : as_list(*tokens, where)) add_token(spec, get<int64_t>(token, "id", where), token, where);
}

}  // namespace

void add_token(TokenizerSpec& spec, int64_t id, const Json& json, const std::string& where) {
  AddedToken added{id, get<std::string>(json, "content", where)};
  check(!added.text.empty(), "{}: token {}: expected a text, found none", where, id);
  added.is_control = get_or(json, "special", false, where);
  added.is_normalized = get_or(json, "normalized", !added.is_control, where);
  added.strip_left = get_or(json, "lstrip", false, where);
  added.strip_right = get_or(json, "rstrip", false, where);
  if (get_or(json, "single_word", false, where)) fail_unknown(where, "single_word", "tokens without it");
  const bool is_known = id >= 0 && id < int64_t(spec.tokens.size()) && spec.tokens[size_t(id)].text == added.text;
  if (!is_known) put_token(spec, id, {added.text, TokenType::kNormal, false});
  Token& token = spec.tokens[size_t(id)];
  if (token.type != TokenType::kUnknown) token.type = added.is_control ? TokenType::kControl : TokenType::kUserDefined;
  const auto old = std::ranges::find(spec.added, id, &AddedToken::id);
  if (old == spec.added.end())
    spec.added.push_back(added);
  else
    *old = added;
}

bool is_byte_name(std::string_view text) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  return text.size() == 6 && text.starts_with("<0x") && text[5] == '>' && is_hex(text[3]) && is_hex(text[4]);
}

std::pair<std::string, std::string> merge_of_line(std::string_view line, const std::string& where) {
  const size_t space = line.find(' ');
  if (space == line.npos || space == 0 || space + 1 == line.size() || line.find(' ', space + 1) != line.npos)
    fail("{}: expected two tokens, found {}", where, quote(line));
  return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

std::pair<std::string, std::string> merge_of_json(const Json& merge, const std::string& where) {
  if (merge.is_array() && merge.size() == 2)
    return {as<std::string>(merge[0], where), as<std::string>(merge[1], where)};
  return merge_of_line(as<std::string>(merge, where), where);
}

void put_token(TokenizerSpec& spec, int64_t id, Token token) {
  const int64_t count = int64_t(spec.tokens.size());
  check(id >= 0 && id < kMaxTokens, "{}: token {}: expected an id from 0 to {}, found {}", spec.source,
        quote(token.text), kMaxTokens - 1, id);
  if (id >= count) spec.tokens.resize(size_t(id) + 1);
  Token& place = spec.tokens[size_t(id)];
  if (!place.text.empty())
    fail("{}: tokens {} and {} share the id {}", spec.source, quote(place.text), quote(token.text), id);
  place = std::move(token);
}

TokenizerSpec parse_tokenizer_json(std::string_view text, const std::string& source, TokenizerModel wanted) {
  TokenizerSpec spec;
  spec.source = source;
  spec.model = wanted;
  const Json json = parse_json(text, source);
  as_object(json, source, "a JSON object");
  read_normalizer(spec, json);
  read_pre_tokenizer(spec, json);
  read_model(spec, json);
  read_added_tokens(spec, json);
  read_post_processor(spec, json);
  read_decoder(spec, json);
  return spec;
}

}  // namespace wick
