// A transformers folder: tokenizer.json or tokenizer.model, and the files beside it.

#include <algorithm>
#include <charconv>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"
#include "wick/text/tokenizer_spec.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{64} << 20, kMaxTemplateBytes = size_t{1} << 20;

Json read_if_there(const fs::path& path) {
  return fs::exists(path) ? as_object(read_json(path), path.string()) : Json::object();
}

// A special token is written as a string, or as an object that holds it as `content`.
std::optional<int64_t> special_id(const TokenizerSpec& spec, const Json& json, const char* key, const fs::path& path) {
  const Json* found = find_member(json, key);
  if (!found) return std::nullopt;
  const std::string where = path.string() + ": " + key;
  const auto text = found->is_object() ? get<std::string>(*found, "content", where) : as<std::string>(*found, where);
  const auto id = find_token(spec, text);
  check(id.has_value(), "{}: {} is not a token of {}", where, quote(text), spec.source);
  return id;
}

void read_added_tokens_decoder(TokenizerSpec& spec, const Json& config, const fs::path& path) {
  const auto found = config.find("added_tokens_decoder");
  if (found == config.end()) return;
  const std::string where = path.string() + ": added_tokens_decoder";
  for (const auto& [key, token] : as_object(*found, where).items()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    check(error == std::errc() && end == key.data() + key.size(), "{}: expected an id, found {}", where, quote(key));
    if (std::ranges::find(spec.added, id, &AddedToken::id) == spec.added.end()) add_token(spec, id, token, where);
  }
}

// Follows transformers' Llama tokenizers; other classes leave it to tokenizer.json's post_processor.
void read_add_bos(TokenizerSpec& spec, const Json& config, const fs::path& path, bool is_sentencepiece) {
  const auto kind = config.contains("tokenizer_class") && config["tokenizer_class"].is_string()
                        ? config["tokenizer_class"].get<std::string>()
                        : "";
  if (!is_sentencepiece && !kind.starts_with("Llama") && !kind.starts_with("CodeLlama")) return;
  const auto wants = [&](const char* key, bool otherwise) {
    const Json* found = find_member(config, key);
    return found ? as<bool>(*found, path.string() + ": " + key) : otherwise;
  };
  spec.before.clear(), spec.after.clear();
  if (wants("add_bos_token", true) && spec.bos) spec.before = {*spec.bos};
  if (wants("add_eos_token", false) && spec.eos) spec.after = {*spec.eos};
}

void read_generation_config(TokenizerSpec& spec, const fs::path& path) {
  const Json config = read_if_there(path);
  const Json* found = find_member(config, "eos_token_id");
  if (!found) return;
  for (const Json& id : found->is_array() ? *found : Json::array({*found})) {
    const auto value = as<int64_t>(id, path.string() + ": eos_token_id");
    check(value >= 0 && value < kMaxTokens, "{}: eos_token_id: expected an id from 0 to {}, found {}", path.string(),
          kMaxTokens - 1, value);
    spec.stops.push_back(value);
  }
}

// A single template, or several with names, of which "default" counts.
std::string read_chat_template(const Json& config, const fs::path& folder) {
  const fs::path file = folder / "chat_template.jinja";
  if (fs::exists(file)) return read_file(file, kMaxTemplateBytes);
  const Json* found = find_member(config, "chat_template");
  if (!found) return "";
  const std::string where = (folder / "tokenizer_config.json").string() + ": chat_template";
  if (!found->is_array()) return as<std::string>(*found, where);
  for (const Json& named : *found)
    if (get<std::string>(named, "name", where) == "default") return get<std::string>(named, "template", where);
  return "";
}

void read_config(TokenizerSpec& spec, const fs::path& folder, bool is_sentencepiece) {
  const fs::path path = folder / "tokenizer_config.json", map_path = folder / "special_tokens_map.json";
  const Json config = read_if_there(path), map = read_if_there(map_path);
  read_added_tokens_decoder(spec, config, path);
  const auto special = [&](const char* key, std::optional<int64_t> otherwise) {
    if (const auto id = special_id(spec, config, key, path)) return id;
    if (const auto id = config.contains(key) ? std::nullopt : special_id(spec, map, key, map_path)) return id;
    return otherwise;
  };
  spec.bos = special("bos_token", spec.bos);
  spec.eos = special("eos_token", spec.eos);
  read_add_bos(spec, config, path, is_sentencepiece);
  spec.stops.clear();
  if (spec.eos) spec.stops.push_back(*spec.eos);
  read_generation_config(spec, folder / "generation_config.json");
  spec.chat_template = read_chat_template(config, folder);
}

// Reads the scores of the tokenizer.model from which the tokenizer.json was made.
void read_scores(TokenizerSpec& spec, const fs::path& path) {
  const TokenizerSpec model = parse_sentencepiece(read_file(path, kMaxFileBytes), path.string());
  for (size_t id = 0; id < spec.tokens.size(); ++id)
    if (spec.tokens[id].is_piece && (id >= model.tokens.size() || model.tokens[id].text != spec.tokens[id].text))
      return;
  for (size_t id = 0; id < std::min(spec.tokens.size(), model.tokens.size()); ++id)
    spec.tokens[id].score = model.tokens[id].score;
  spec.has_scores = true;
}

}  // namespace

TokenizerSpec read_tokenizer_folder(const fs::path& folder, bool with_scores) {
  const fs::path json = folder / "tokenizer.json", model = folder / "tokenizer.model";
  const bool is_json = fs::exists(json);
  check(is_json || fs::exists(model), "{}: no tokenizer.json or tokenizer.model there; expected a transformers folder",
        folder.string());
  TokenizerSpec spec = is_json ? parse_tokenizer_json(read_file(json, kMaxFileBytes), json.string())
                               : parse_sentencepiece(read_file(model, kMaxFileBytes), model.string());
  if (is_json && with_scores && !spec.is_byte_level && fs::exists(model)) read_scores(spec, model);
  read_config(spec, folder, !is_json);
  complete_stops(spec);
  return spec;
}

void complete_stops(TokenizerSpec& spec) {
  for (const char* end : {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"})
    if (const auto id = find_token(spec, end); id && spec.tokens[size_t(*id)].type == TokenType::kControl)
      spec.stops.push_back(*id);
  std::sort(spec.stops.begin(), spec.stops.end());
  spec.stops.erase(std::unique(spec.stops.begin(), spec.stops.end()), spec.stops.end());
}

}  // namespace wick
