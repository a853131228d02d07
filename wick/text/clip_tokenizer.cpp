#include "wick/text/clip_tokenizer.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "wick/core/error.h"
#include "wick/text/byte_characters.h"
#include "wick/text/unicode.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr int64_t kMaxId = 1 << 20;
constexpr int64_t kMaxLength = 4096;  // transformers writes 10^30 for "no limit"
constexpr int64_t kDefaultLength = 77;

constexpr const char* kWords = R"('s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\p{White_Space}\p{L}\p{N}]+)";

std::string read_file(const fs::path& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  check(!error, "{}: cannot be read ({}); a CLIP tokenizer is a folder with vocab.json and merges.txt", path.string(),
        error.message());
  check(bytes <= kMaxFileBytes, "{}: {} bytes; a tokenizer's files have at most {}", path.string(), bytes,
        kMaxFileBytes);
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  check(file.good() || file.eof(), "{}: cannot be read", path.string());
  const size_t invalid = invalid_utf8(text);
  check(invalid == std::string::npos, "{}: expected UTF-8 text, found an invalid byte at {}; copy the file again",
        path.string(), invalid);
  return text;
}

Json read_object(const fs::path& path) {
  Json json;
  try {
    json = Json::parse(read_file(path));
  } catch (const Json::parse_error& error) {
    fail("{}: expected JSON, found an error at byte {}; copy the file again", path.string(), error.byte);
  }
  check(json.is_object(), "{}: expected a JSON object, found {}", path.string(), json.type_name());
  return json;
}

Json read_object_if_there(const fs::path& path) { return fs::exists(path) ? read_object(path) : Json::object(); }

// Text out of a file, fit for a one-line message.
std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 60;
  const std::string shown = text.size() <= kLongest ? std::string(text) : std::string(text.substr(0, kLongest)) + "...";
  return Json(shown).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string described(const Json& value) { return value.is_number() ? value.dump() : value.type_name(); }

// A special token is written as a string, or as an object that holds it as `content`.
std::optional<std::string> special_content(const Json& json, const char* key, const fs::path& path) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return std::nullopt;
  const Json& value = found->is_object() && found->contains("content") ? found->at("content") : *found;
  check(value.is_string() && !value.get_ref<const std::string&>().empty(),
        "{}: {}: expected a token or an object with its content, found {}", path.string(), key, found->type_name());
  return value.get<std::string>();
}

int64_t read_max_length(const Json& config, const fs::path& path) {
  const auto found = config.find("model_max_length");
  if (found == config.end() || found->is_null()) return kDefaultLength;
  check(found->is_number() && found->get<double>() >= 3,
        "{}: model_max_length: expected a number of at least 3, found {}", path.string(), described(*found));
  return found->get<double>() > kMaxLength ? kDefaultLength : found->get<int64_t>();
}

}  // namespace

// vocab.json, while the files are being read.
class ClipTokenizer::Vocabulary {
 public:
  explicit Vocabulary(const fs::path& path) : path_(path.string()) {
    std::unordered_map<int64_t, std::string> owners;
    const Json json = read_object(path);
    for (const auto& [token, id] : json.items()) {
      if (!id.is_number_integer() || id < 0 || id >= kMaxId)
        fail("{}: token {}: expected an id from 0 to {}, found {}", path_, in_quotes(token), kMaxId - 1, described(id));
      const auto [owner, is_new] = owners.emplace(id.get<int64_t>(), token);
      if (!is_new)
        fail("{}: tokens {} and {} share the id {}", path_, in_quotes(owner->second), in_quotes(token), owner->first);
      ids_.emplace(token, id.get<int32_t>());
      size_ = std::max(size_, id.get<int64_t>() + 1);
    }
  }

  int64_t size() const { return size_; }

  std::optional<int32_t> find(const std::string& token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  int64_t special(const std::string& token, const char* role) const {
    const auto id = find(token);
    check(id.has_value(), "{}: expected the {} {}, found no such token", path_, role, in_quotes(token));
    return *id;
  }

 private:
  std::string path_;
  std::unordered_map<std::string, int32_t> ids_;
  int64_t size_ = 0;
};

ClipTokenizer ClipTokenizer::load(const fs::path& folder) {
  const Vocabulary vocabulary(folder / "vocab.json");
  ClipTokenizer tokenizer;
  tokenizer.size_ = vocabulary.size();
  tokenizer.load_specials(folder, vocabulary);
  tokenizer.load_merges(folder / "merges.txt", vocabulary);
  return tokenizer;
}

// As transformers reads them: a tokenizer_config.json with `added_tokens_decoder` is complete, an older one gives way
// to special_tokens_map.json.
void ClipTokenizer::load_specials(const fs::path& folder, const Vocabulary& vocabulary) {
  const fs::path config_path = folder / "tokenizer_config.json", map_path = folder / "special_tokens_map.json";
  const Json config = read_object_if_there(config_path);
  const Json map = config.contains("added_tokens_decoder") ? Json::object() : read_object_if_there(map_path);
  const auto id_of = [&](const char* role, const char* fallback) {
    const auto newer = special_content(map, role, map_path);
    const std::string token = newer ? *newer : special_content(config, role, config_path).value_or(fallback);
    const int64_t id = vocabulary.special(token, role);
    const std::pair entry(lower_case(normalize_nfc(token)), id);
    if (std::find(specials_.begin(), specials_.end(), entry) == specials_.end()) specials_.push_back(entry);
    return id;
  };
  bos_ = id_of("bos_token", "<|startoftext|>");
  eos_ = id_of("eos_token", "<|endoftext|>");
  pad_ = id_of("pad_token", "<|endoftext|>");
  const int64_t unknown = id_of("unk_token", "<|endoftext|>");
  std::sort(specials_.begin(), specials_.end(),
            [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  max_length_ = read_max_length(config, config_path);

  const auto& tokens = byte_characters();
  for (size_t byte = 0; byte < tokens.size(); ++byte) {
    inner_byte_[byte] = vocabulary.find(tokens[byte]).value_or(int32_t(unknown));
    last_byte_[byte] = vocabulary.find(tokens[byte] + "</w>").value_or(int32_t(unknown));
  }
}

void ClipTokenizer::load_merges(const fs::path& path, const Vocabulary& vocabulary) {
  const std::string text = read_file(path);
  std::string_view rest = text;
  for (int line_number = 1; !rest.empty(); ++line_number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("#version") || (line.empty() && rest.empty())) continue;

    const size_t space = line.find(' ');
    if (space == line.npos || space == 0 || space + 1 == line.size() || line.find(' ', space + 1) != line.npos)
      fail("{}: line {}: expected two tokens, found {}", path.string(), line_number, in_quotes(line));
    const auto id_of = [&](const std::string& token) {
      const auto id = vocabulary.find(token);
      if (!id)
        fail("{}: line {}: {} is not in vocab.json; the two files must be of one tokenizer", path.string(), line_number,
             in_quotes(token));
      return *id;
    };
    const std::string left(line.substr(0, space)), right(line.substr(space + 1));
    const int32_t left_id = id_of(left), right_id = id_of(right);
    if (!merges_.add(left_id, right_id, {int32_t(merges_.size()), id_of(left + right)}))
      fail("{}: line {}: the pair {} stands there twice", path.string(), line_number, in_quotes(line));
  }
}

std::vector<int64_t> ClipTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids = tokens(text, size_t(max_length_ - 1));
  ids.push_back(eos_);
  ids.resize(size_t(max_length_), pad_);
  return ids;
}

std::vector<int64_t> ClipTokenizer::tokens(std::string_view text, size_t most) const {
  check(text.size() <= kMaxTextBytes, "text: expected at most {} bytes, found {}", kMaxTextBytes, text.size());
  const size_t invalid = invalid_utf8(text);
  check(invalid == text.npos, "text: expected UTF-8, found an invalid byte at {}; save it as UTF-8", invalid);

  const std::string normal = lower_case(normalize_nfc(text));
  const std::string_view all = normal;
  std::vector<int64_t> ids{bos_};
  size_t start = 0;  // of the words since the last special token
  for (size_t at = 0; at < all.size() && ids.size() < most;) {
    const auto* special = special_at(all.substr(at));
    if (!special) {
      ++at;
      continue;
    }
    encode_words(all.substr(start, at - start), most, ids);
    ids.push_back(special->second);
    at += special->first.size();
    start = at;
  }
  encode_words(all.substr(start), most, ids);
  ids.resize(std::min(ids.size(), most));
  return ids;
}

const std::pair<std::string, int64_t>* ClipTokenizer::special_at(std::string_view text) const {
  for (const auto& special : specials_)
    if (text.starts_with(special.first)) return &special;
  return nullptr;
}

void ClipTokenizer::encode_words(std::string_view text, size_t most, std::vector<int64_t>& ids) const {
  static const Regex words(kWords);
  words.each_match(text, [&](std::string_view word) {
    if (ids.size() < most) encode_word(word, ids);
    return ids.size() < most;
  });
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
