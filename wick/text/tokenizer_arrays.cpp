// The arrays of a GGUF file to a TokenizerSpec and back.

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/text/tokenizer_spec.h"
#include "wick/text/unicode.h"

namespace wick {
namespace {

// The meanings of `tokenizer.ggml.pre` (llama.cpp, src/llama-vocab.cpp). Where several names mean the same, the first
// is written.
struct PreTokenizer {
  std::vector<std::string_view> names;
  std::vector<WordPattern> patterns;
  bool ignore_merges, nfc, add_bos;
};

const std::vector<PreTokenizer>& pre_tokenizers() {
  using P = WordPattern;
  static const std::vector<PreTokenizer> all{
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"},
       {P::kLlama3},
       true,
       false,
       true},
      {{"smaug-bpe"}, {P::kLlama3}, false, false, false},
      {{"qwen2", "deepseek-r1-qwen"}, {P::kQwen2}, false, true, false},
      {{"tekken"}, {P::kTekken}, true, false, true},
      {{"smollm"}, {P::kDigits, P::kGpt2}, false, false, false},
      {{"gpt-2"}, {P::kGpt2}, false, false, false},
      {{"default"}, {P::kPunctuation, P::kGpt2, P::kNumbers, P::kThreeDigits}, false, false, false},
  };
  return all;
}

const PreTokenizer& pre_tokenizer(const std::string& name, const std::string& source) {
  std::vector<std::string_view> known;
  for (const PreTokenizer& each : pre_tokenizers()) {
    if (std::ranges::find(each.names, name) != each.names.end()) return each;
    known.insert(known.end(), each.names.begin(), each.names.end());
  }
  fail("{}: tokenizer.ggml.pre {} is not supported; Wick knows {}", source, quote(name), fmt::join(known, ", "));
}

void read_tokens(TokenizerSpec& spec, const TokenizerArrays& arrays) {
  const size_t count = arrays.tokens.size();
  check(count > 0 && int64_t(count) <= kMaxTokens, "{}: expected 1 to {} tokens, found {}", spec.source, kMaxTokens,
        count);
  const auto check_size = [&](const char* key, size_t size) {
    check(size == count, "{}: {} {} for {}; convert the model to GGUF again", spec.source, size, key,
          count_of(count, "token"));
  };
  if (spec.by_scores || !arrays.scores.empty()) check_size("scores", arrays.scores.size());
  check_size("token types", arrays.token_type.size());
  spec.tokens.resize(count);
  for (size_t id = 0; id < count; ++id) {
    Token& token = spec.tokens[id];
    token.text = arrays.tokens[id];
    check(invalid_utf8(token.text) == std::string::npos, "{}: token {}: expected UTF-8", spec.source, id);
    const int32_t type = arrays.token_type[id];
    check(type >= 1 && type <= 6, "{}: token {}: expected a type from 1 to 6, found {}", spec.source, id, type);
    token.type = TokenType(type);
    if (spec.by_scores) token.score = arrays.scores[id];
    check(std::isfinite(token.score), "{}: token {}: the score is not finite", spec.source, id);
  }
}

void mark_tokens(TokenizerSpec& spec) {
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    Token& token = spec.tokens[id];
    const bool is_control = token.type == TokenType::kControl;
    const bool is_added = is_control || (!spec.by_scores && token.type == TokenType::kUserDefined);
    if (is_added && !token.text.empty()) spec.added.push_back({int64_t(id), token.text, is_control});
    const bool is_filler = !spec.by_scores && token.type == TokenType::kUnused;
    token.is_piece = !is_added && !is_filler && token.type != TokenType::kUnknown;
    if (token.type != TokenType::kByte) continue;
    check(is_byte_name(token.text), "{}: token {}: expected a byte as <0x0A>, found {}", spec.source, id,
          quote(token.text));
    spec.byte_fallback = !spec.is_byte_level;
  }
}

void read_special_ids(TokenizerSpec& spec, const TokenizerArrays& arrays, bool add_bos) {
  const auto checked = [&](std::optional<int64_t> id, const char* key) {
    if (id)
      check(*id >= 0 && *id < int64_t(spec.tokens.size()), "{}: {}: no token has the id {}", spec.source, key, *id);
    return id;
  };
  spec.bos = checked(arrays.bos_token_id, "bos_token_id");
  spec.eos = checked(arrays.eos_token_id, "eos_token_id");
  spec.unknown = checked(arrays.unknown_token_id, "unknown_token_id");
  const std::pair<const char*, std::optional<int64_t>> texts[] = {
      {"bos_token", spec.bos},
      {"eos_token", spec.eos},
      {"unk_token", spec.unknown},
      {"pad_token", checked(arrays.padding_token_id, "padding_token_id")}};
  for (const auto& [name, id] : texts)
    if (id) spec.special_texts[name] = spec.tokens[size_t(*id)].text;
  if (spec.eos) spec.stops.push_back(*spec.eos);
  if (const auto eot = checked(arrays.eot_token_id, "eot_token_id")) spec.stops.push_back(*eot);
  if (const auto eom = checked(arrays.eom_token_id, "eom_token_id")) spec.stops.push_back(*eom);
  if (spec.bos && arrays.add_bos_token.value_or(add_bos)) spec.before = {*spec.bos};
  if (spec.eos && arrays.add_eos_token.value_or(false)) spec.after = {*spec.eos};
}

// llama.cpp refuses such a file too ("cannot find tokenizer merges in model file"). Without merges a text becomes its
// bytes, for which no model was trained whose tokens are longer.
void check_has_merges(const TokenizerSpec& spec, const TokenizerArrays& arrays) {
  const auto is_long = [](const Token& token) {
    return token.is_piece && token.type == TokenType::kNormal && !token.text.empty() &&
           character_at(token.text, 0).bytes < token.text.size();
  };
  const int64_t unmade = std::ranges::count_if(spec.tokens, is_long);
  check(!arrays.merges.empty() || unmade == 0,
        "{}: no merges (tokenizer.ggml.merges), and {} of its {} need them; convert the model to GGUF again",
        spec.source, unmade, count_of(spec.tokens.size(), "token"));
}

void read_arrays_merges(TokenizerSpec& spec, const TokenizerArrays& arrays) {
  check_has_merges(spec, arrays);
  const std::string place = spec.source + ": merges";
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < spec.tokens.size(); ++id) ids.emplace(spec.tokens[id].text, int32_t(id));
  const auto id_of = [&](std::string_view text) {
    const auto found = ids.find(text);
    if (found == ids.end()) fail("{}: {} is not among the tokens", place, quote(text));
    return found->second;
  };
  for (const std::string& merge : arrays.merges) {
    const auto [left, right] = merge_of_line(merge, place);
    spec.merges.push_back({id_of(left), id_of(right), id_of(left + right)});
  }
}

std::string pre_of_spec(const TokenizerSpec& spec) {
  const bool is_nfc = spec.normalizer.size() == 1 && spec.normalizer[0].kind == NormalizerStep::kNfc;
  for (const PreTokenizer& each : pre_tokenizers()) {
    if (each.patterns == spec.patterns && each.ignore_merges == spec.ignore_merges && each.nfc == is_nfc &&
        is_nfc == !spec.normalizer.empty() && !spec.add_prefix_space)
      return std::string(each.names.front());
  }
  fail("{}: GGUF has no name for the way in which it cuts words", spec.source);
}

// Scores under which text merges as by the list of pairs: one less for each new token. They exist if all pairs that
// make a token are adjacent in the list and include every way to make it of two tokens.
std::vector<float> scores_of_merges(const TokenizerSpec& spec) {
  std::vector<float> scores(spec.tokens.size(), 0);
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < spec.tokens.size(); ++id)
    if (spec.tokens[id].is_piece) ids.emplace(spec.tokens[id].text, int32_t(id));
  std::vector<int32_t> ways(spec.tokens.size(), 0);
  float score = 0;
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    const auto made = size_t(spec.merges[i].merged);
    const bool is_next = i == 0 || spec.merges[i - 1].merged != spec.merges[i].merged;
    check(!is_next || ways[made] == 0, "{}: its merges cannot be written as scores; use a tokenizer.model",
          spec.source);
    if (is_next) scores[made] = -++score;
    ++ways[made];
  }
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const std::string_view text = spec.tokens[id].text;
    if (!spec.tokens[id].is_piece || ways[id] == 0) continue;
    for (size_t at = 1; at < text.size(); ++at) ways[id] -= ids.count(text.substr(0, at)) && ids.count(text.substr(at));
    check(ways[id] == 0, "{}: its merges cannot be written as scores; use a tokenizer.model", spec.source);
  }
  return scores;
}

}  // namespace

TokenizerSpec spec_of_arrays(const TokenizerArrays& arrays, const std::string& source) {
  TokenizerSpec spec;
  spec.source = source;
  for (const auto& [name, text] : arrays.chat_templates)
    add_chat_template(spec, name, text, source + ": chat template " + quote(name));
  bool add_bos = true;
  if (arrays.model == "llama") {
    spec.by_scores = true;
    spec.replaces_each_byte = true;
    spec.strips_leading_space = arrays.add_space_prefix.value_or(true);
    const std::string space(kSpacePiece);
    if (spec.strips_leading_space) spec.normalizer.push_back({NormalizerStep::kPrepend, "", space});
    spec.normalizer.push_back({NormalizerStep::kReplace, " ", space});
  } else if (arrays.model == "gpt2") {
    const PreTokenizer& pre = pre_tokenizer(arrays.pre.empty() ? "default" : arrays.pre, source);
    spec.is_byte_level = true;
    spec.patterns = pre.patterns;
    spec.ignore_merges = pre.ignore_merges;
    if (pre.nfc) spec.normalizer.push_back({NormalizerStep::kNfc, "", ""});
    add_bos = pre.add_bos;
  } else {
    fail("{}: tokenizer.ggml.model {} is not supported; Wick knows llama and gpt2", source, quote(arrays.model));
  }
  read_tokens(spec, arrays);
  mark_tokens(spec);
  if (spec.is_byte_level) read_arrays_merges(spec, arrays);
  read_special_ids(spec, arrays, add_bos);
  complete_stops(spec);
  return spec;
}

TokenizerArrays arrays_of_spec(const TokenizerSpec& spec, int64_t rows) {
  const auto count = int64_t(spec.tokens.size());
  check(spec.model == TokenizerModel::kBpe, "{}: a unigram model is not written to GGUF files", spec.source);
  check(rows <= kMaxTokens, "{}: the model has {} of tokens, more than {}", spec.source, count_of(rows, "row"),
        kMaxTokens);
  check(count <= rows, "{}: expected {} or fewer, as the model has rows, found {}", spec.source,
        count_of(rows, "token"), count);
  TokenizerArrays arrays;
  arrays.model = spec.is_byte_level ? "gpt2" : "llama";
  if (spec.is_byte_level) arrays.pre = pre_of_spec(spec);
  const bool has_scores = spec.by_scores || spec.has_scores;
  if (!spec.is_byte_level && !has_scores) arrays.scores = scores_of_merges(spec);
  for (int64_t id = 0; id < rows; ++id) {
    const Token& token = id < count ? spec.tokens[size_t(id)] : Token{};
    // GGUF wants a text for every id.
    arrays.tokens.push_back(token.text.empty() ? fmt::format("[PAD{}]", id) : token.text);
    const bool is_unknown = spec.unknown == id && !spec.is_byte_level;
    arrays.token_type.push_back(int32_t(is_unknown ? TokenType::kUnknown : token.type));
    if (has_scores) arrays.scores.push_back(float(token.score));
  }
  if (spec.is_byte_level) {
    for (const MergeRule& rule : spec.merges)
      arrays.merges.push_back(spec.tokens[size_t(rule.left)].text + " " + spec.tokens[size_t(rule.right)].text);
  } else {
    arrays.scores.resize(size_t(rows), 0);
    const auto is_prefix = [](const NormalizerStep& step) { return step.kind == NormalizerStep::kPrepend; };
    arrays.add_space_prefix = spec.space_prefix != SpacePrefix::kNever ||
                              std::any_of(spec.normalizer.begin(), spec.normalizer.end(), is_prefix);
  }
  arrays.bos_token_id = spec.bos;
  arrays.eos_token_id = spec.eos;
  const auto special = [&](const char* name) -> std::optional<int64_t> {
    const auto found = spec.special_texts.find(name);
    return found == spec.special_texts.end() ? std::nullopt : find_token(spec, found->second);
  };
  arrays.unknown_token_id = spec.unknown ? spec.unknown : special("unk_token");
  arrays.padding_token_id = special("pad_token");
  for (const int64_t stop : spec.stops) {
    if (stop == spec.eos) continue;
    auto& key = arrays.eot_token_id ? arrays.eom_token_id : arrays.eot_token_id;
    if (!key) key = stop;
  }
  arrays.add_bos_token = spec.bos && std::find(spec.before.begin(), spec.before.end(), *spec.bos) != spec.before.end();
  arrays.add_eos_token = spec.eos && std::find(spec.after.begin(), spec.after.end(), *spec.eos) != spec.after.end();
  arrays.chat_templates = spec.chat_templates;
  return arrays;
}

}  // namespace wick
