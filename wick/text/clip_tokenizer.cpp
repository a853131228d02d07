#include "wick/text/clip_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"
#include "wick/text/tokenizer_spec.h"
#include "wick/text/unicode.h"
#include "wick/text/words.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMaxMergesBytes = size_t{16} << 20;
constexpr const char* kWhole = "tokenizer.json";
constexpr int64_t kMaxLength = 4096;  // transformers writes 10^30 for "no limit"
constexpr int64_t kDefaultLength = 77;

Json read_object(const fs::path& path) {
  Json json = read_json(path);
  check(json.is_object(), "{}: expected a JSON object, found {}", path.string(), json.type_name());
  return json;
}

Json read_object_if_there(const fs::path& path) { return fs::exists(path) ? read_object(path) : Json::object(); }

std::string described(const Json& value) { return value.is_number() ? value.dump() : value.type_name(); }

// A special token is written as a string, or as an object that holds it as `content`.
std::optional<std::string> special_content(const Json& json, const char* key, const fs::path& path) {
  const Json* found = find_member(json, key);
  if (!found) return std::nullopt;
  const Json& value = found->is_object() && found->contains("content") ? found->at("content") : *found;
  check(value.is_string() && !value.get_ref<const std::string&>().empty(),
        "{}: {}: expected a token or an object with its content, found {}", path.string(), key, found->type_name());
  return value.get<std::string>();
}

int64_t read_max_length(const Json& config, const fs::path& path) {
  const Json* found = find_member(config, "model_max_length");
  if (!found) return kDefaultLength;
  check(found->is_number() && found->get<double>() >= 3,
        "{}: model_max_length: expected a number of at least 3, found {}", path.string(), described(*found));
  return found->get<double>() > kMaxLength ? kDefaultLength : found->get<int64_t>();
}

// Whether the parts of a tokenizer.json around its merges are CLIP's.
bool is_clip(const Json& json) {
  static const Json kNormalizer = parse_json(R"({"type": "Sequence", "normalizers": [
      {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, {"type": "Lowercase"}]})",
                                             "CLIP's normalizer");
  Json cuts = parse_json(R"({"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {}, "behavior": "Removed", "invert": true},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]})",
                         "CLIP's pre_tokenizer");
  constexpr const char* kSplit = R"('s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)";
  bool cuts_so = false;
  // Some files name the special tokens here once more, although they are found before.
  for (const char* specials : {"", R"(<\|startoftext\|>|<\|endoftext\|>|)"}) {
    cuts["pretokenizers"][0]["pattern"]["Regex"] = std::string(specials) + kSplit;
    cuts_so = cuts_so || json.value("pre_tokenizer", Json()) == cuts;
  }
  const Json& model = json.at("model");
  const Json prefix = model.value("continuing_subword_prefix", Json(""));
  return cuts_so && json.value("normalizer", Json()) == kNormalizer && model.value("type", Json("BPE")) == "BPE" &&
         model.value("end_of_word_suffix", Json()) == "</w>" && (prefix.is_null() || prefix == "") &&
         model.value("dropout", Json()).is_null() && model.value("byte_fallback", Json(false)) == false;
}

}  // namespace

// Tokens and ids, while the files are being read.
class ClipTokenizer::Vocabulary {
 public:
  Vocabulary(const Json& tokens, const std::string& path) {
    spec_.source = path;
    for (const auto& [token, id] : as_object(tokens, path, "an object of tokens and ids").items()) {
      if (!id.is_number_integer() || id < 0 || id >= kMaxTokens)
        fail("{}: token {}: expected an id from 0 to {}, found {}", path, quote(token), kMaxTokens - 1, described(id));
      put_token(spec_, id.get<int64_t>(), {token});
      ids_.emplace(token, id.get<int32_t>());
    }
  }

  int64_t size() const { return int64_t(spec_.tokens.size()); }

  std::optional<int32_t> find(const std::string& token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  const std::string& source() const { return spec_.source; }

 private:
  TokenizerSpec spec_;  // its source and tokens
  std::unordered_map<std::string, int32_t> ids_;
};

ClipTokenizer ClipTokenizer::load(const fs::path& path) {
  ClipTokenizer tokenizer;
  if (fs::is_regular_file(path))
    tokenizer.load_whole(path);
  else if (fs::exists(path / kWhole) && !fs::exists(path / "vocab.json"))
    tokenizer.load_whole(path / kWhole);
  else
    tokenizer.load_parts(path);
  return tokenizer;
}

void ClipTokenizer::load_parts(const fs::path& folder) {
  const fs::path tokens = folder / "vocab.json";
  check(fs::exists(tokens), "{}: no such file; a CLIP tokenizer is a folder with vocab.json and merges.txt, or with {}",
        tokens.string(), kWhole);
  const Vocabulary vocabulary(read_object(tokens), tokens.string());
  size_ = vocabulary.size();
  load_specials(folder, vocabulary);
  load_merges(folder / "merges.txt", vocabulary);
}

// transformers 5 writes all into one file.
void ClipTokenizer::load_whole(const fs::path& file) {
  const std::string source = file.string();
  const Json json = read_object(file);
  const Json& model = as_object(member(json, "model", source), source + ": model");
  check(is_clip(json), "{}: expected the tokenizer of CLIP, found another one", source);
  const Vocabulary vocabulary(member(model, "vocab", source + ": model"), source);
  size_ = vocabulary.size();
  load_specials(file.parent_path(), vocabulary);
  const std::string where = source + ": added_tokens";
  const Json* const added = find_member(json, "added_tokens");
  for (const Json& token : added ? as_list(*added, where) : Json::array()) {
    const auto text = get<std::string>(token, "content", where);
    const auto id = get<int64_t>(token, "id", where);
    for (const char* flag : {"single_word", "lstrip", "rstrip"})
      check(!token.contains(flag) || token[flag] == false, "{}: {}: {} is set; Wick knows tokens without it", where,
            quote(text), flag);
    const bool is_special = id == bos_ || id == eos_ || id == pad_ || id == unknown_;
    check(vocabulary.find(text) == id && is_special, "{}: {} is no special token of CLIP's; Wick knows no others",
          where, quote(text));
  }
  const Json& merges = as_list(member(model, "merges", source + ": model"), source + ": model: merges");
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::string place = fmt::format("{}: model: merges[{}]", source, i);
    add_merge(merge_of_json(merges[i], place), vocabulary, place);
  }
}

// Follows transformers: a tokenizer_config.json with `added_tokens_decoder` is complete, an older one gives way to
// special_tokens_map.json.
void ClipTokenizer::load_specials(const fs::path& folder, const Vocabulary& vocabulary) {
  const fs::path config_path = folder / "tokenizer_config.json", map_path = folder / "special_tokens_map.json";
  const Json config = read_object_if_there(config_path);
  const Json map = config.contains("added_tokens_decoder") ? Json::object() : read_object_if_there(map_path);
  std::vector<std::pair<std::string, int32_t>> specials;
  const auto id_of = [&](const char* role, const char* fallback) {
    const auto newer = special_content(map, role, map_path);
    const std::string token = newer ? *newer : special_content(config, role, config_path).value_or(fallback);
    const auto id = vocabulary.find(token);
    check(id.has_value(), "{}: expected the {} {}, found no such token", vocabulary.source(), role, quote(token));
    specials.emplace_back(lower_case(normalize_nfc(token)), *id);
    return *id;
  };
  bos_ = id_of("bos_token", "<|startoftext|>");
  eos_ = id_of("eos_token", "<|endoftext|>");
  pad_ = id_of("pad_token", "<|endoftext|>");
  unknown_ = id_of("unk_token", "<|endoftext|>");
  specials_ = TokenMatcher(std::move(specials));
  max_length_ = read_max_length(config, config_path);

  const auto& tokens = byte_characters();
  for (size_t byte = 0; byte < tokens.size(); ++byte) {
    inner_byte_[byte] = vocabulary.find(tokens[byte]).value_or(int32_t(unknown_));
    last_byte_[byte] = vocabulary.find(tokens[byte] + "</w>").value_or(int32_t(unknown_));
  }
}

void ClipTokenizer::add_merge(const std::pair<std::string, std::string>& merge, const Vocabulary& vocabulary,
                              const std::string& where) {
  const auto& [left, right] = merge;
  const auto id_of = [&](const std::string& token) {
    const auto id = vocabulary.find(token);
    if (!id) fail("{}: {} is not in the vocabulary; both must be of one tokenizer", where, quote(token));
    return *id;
  };
  const int32_t left_id = id_of(left), right_id = id_of(right);
  if (!merges_.add(left_id, right_id, {int32_t(merges_.size()), id_of(left + right)}))
    fail("{}: the pair {} stands there twice", where, quote(left + " " + right));
}

void ClipTokenizer::load_merges(const fs::path& path, const Vocabulary& vocabulary) {
  const std::string text = read_file(path, kMaxMergesBytes);
  const size_t invalid = invalid_utf8(text);
  check(invalid == text.npos, "{}: expected UTF-8 text, found an invalid byte at {}; copy the file again",
        path.string(), invalid);
  std::string_view rest = text;
  for (int line_number = 1; !rest.empty(); ++line_number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("#version") || (line.empty() && rest.empty())) continue;

    const std::string where = fmt::format("{}: line {}", path.string(), line_number);
    add_merge(merge_of_line(line, where), vocabulary, where);
  }
}

ClipTokenizer ClipTokenizer::padded_with(int64_t id) const {
  ClipTokenizer other = *this;
  other.pad_ = id;
  return other;
}

std::vector<int64_t> ClipTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids = tokens(text, size_t(max_length_ - 1));
  ids.push_back(eos_);
  ids.resize(size_t(max_length_), pad_);
  return ids;
}

std::vector<int64_t> ClipTokenizer::encode_whole(std::string_view text) const {
  std::vector<int64_t> ids = tokens(text, kMaxTextBytes + 1);
  ids.push_back(eos_);
  return ids;
}

std::vector<int64_t> ClipTokenizer::encode_bare(std::string_view text) const {
  std::vector<int64_t> ids = tokens(text, kMaxTextBytes + 1);
  ids.erase(ids.begin());
  return ids;
}

std::vector<int64_t> ClipTokenizer::framed(std::vector<int64_t> ids) const {
  ids.insert(ids.begin(), bos_);
  ids.resize(std::min(ids.size(), size_t(max_length_ - 1)));
  ids.push_back(eos_);
  ids.resize(size_t(max_length_), pad_);
  return ids;
}

std::vector<int64_t> ClipTokenizer::chunked(std::vector<int64_t> bare, int64_t chunks) const {
  const size_t room = size_t(max_length_ - 2), most = size_t(chunks) * room;
  bare.resize(std::min(bare.size(), most));
  bare.push_back(eos_);
  bare.resize(most + 1, pad_);
  std::vector<int64_t> ids;
  for (size_t begin = 0; begin < most; begin += room) {
    const size_t first = ids.size() + 1;
    ids.push_back(bos_);
    ids.insert(ids.end(), bare.begin() + ptrdiff_t(begin), bare.begin() + ptrdiff_t(begin + room));
    ids.push_back(bare.back());
    if (pad_ == eos_) continue;
    if (ids[ids.size() - 2] != eos_ && ids[ids.size() - 2] != pad_) ids.back() = eos_;
    if (ids[first] == pad_) ids[first] = eos_;
  }
  return ids;
}

std::vector<int64_t> ClipTokenizer::tokens(std::string_view text, size_t most) const {
  check_text(text, kMaxTextBytes);
  const std::string normal = lower_case(normalize_nfc(text));
  const std::string_view all = normal;
  std::vector<int64_t> ids{bos_};
  size_t start = 0;  // of the words since the last special token
  for (size_t at = 0; at < all.size() && ids.size() < most;) {
    const auto special = specials_.longest(all, at, [](int32_t) { return true; });
    if (special.size == 0) {
      ++at;
      continue;
    }
    encode_words(all.substr(start, at - start), most, ids);
    ids.push_back(special.value);
    at += special.size;
    start = at;
  }
  encode_words(all.substr(start), most, ids);
  ids.resize(std::min(ids.size(), most));
  return ids;
}

void ClipTokenizer::encode_words(std::string_view text, size_t most, std::vector<int64_t>& ids) const {
  for (size_t at = 0; at < text.size() && ids.size() < most;) {
    const size_t end = word_end(WordPattern::kClip, text, at);
    if (!(character_at(text, at).classes & Character::kSpace)) encode_word(text.substr(at, end - at), ids);
    at = end;
  }
}

void ClipTokenizer::encode_word(std::string_view word, std::vector<int64_t>& ids) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (size_t i = 0; i < word.size(); ++i) {
    const auto& byte_ids = i + 1 == word.size() ? last_byte_ : inner_byte_;
    push_symbol(symbols, byte_ids[uint8_t(word[i])], int32_t(i), 1);
  }
  merge_symbols(symbols, [&](const Symbol& left, const Symbol& right) { return merges_.find(left.id, right.id); });
  for (int32_t i = 0; i != Symbol::kNone; i = symbols[size_t(i)].next) ids.push_back(symbols[size_t(i)].id);
}

}  // namespace wick
