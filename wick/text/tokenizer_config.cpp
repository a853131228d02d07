// A transformers folder: tokenizer.json or tokenizer.model, and the files beside it.

#include <algorithm>
#include <charconv>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"
#include "wick/text/tokenizer_spec.h"
#include "wick/text/unicode.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{64} << 20;

Json read_if_there(const fs::path& path) {
  return fs::exists(path) ? as_object(read_json(path), path.string()) : Json::object();
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));  // a link that leads nowhere, too
}

bool is_named(std::string_view key) {
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
    if (key == name) return true;
  return false;
}

// Special tokens that a tokenizer_class of transformers has where the files do not name them.
struct ClassTokens {
  const char* start;  // of the class's name
  std::vector<std::pair<const char*, const char*>> texts;
};
const std::vector<ClassTokens>& class_tokens() {
  static const std::vector<ClassTokens> all{
      {"Llama", {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}},
      {"CodeLlama", {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}},
      {"Qwen2", {{"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}, {"pad_token", "<|endoftext|>"}}},
      {"GPT2", {{"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}}},
  };
  return all;
}

std::string tokenizer_class(const Json& config) {
  const auto found = config.find("tokenizer_class");
  return found != config.end() && found->is_string() ? found->get<std::string>() : "";
}

// transformers' special_tokens_map, of a tokenizer_config.json and a special_tokens_map.json, whose keys win; but the
// latter is not read if the former has added_tokens_decoder.
class SpecialTokens {
 public:
  SpecialTokens(const TokenizerSpec& spec, const Json& config, const fs::path& path, const Json& map,
                const fs::path& map_path)
      : spec_(spec) {
    read_file_of(config, path.string());
    if (!config.contains("added_tokens_decoder")) read_file_of(map, map_path.string());
    const std::string kind = tokenizer_class(config);
    for (const ClassTokens& tokens : class_tokens())
      if (kind.starts_with(tokens.start))
        for (const auto& [key, text] : tokens.texts) set_if_unnamed(key, find_token(spec, text));
    set_if_unnamed("bos_token", spec.bos);
    set_if_unnamed("eos_token", spec.eos);
    if (spec.by_scores) set_if_unnamed("unk_token", spec.unknown);
  }

  std::optional<int64_t> id(const std::string& key) const {
    const auto found = all_.find(key);
    if (found == all_.end() || !found->second.text) return std::nullopt;
    const auto id = find_token(spec_, *found->second.text);
    check(id.has_value(), "{}: {} is not a token of {}", found->second.where, quote(*found->second.text), spec_.source);
    return id;
  }
  std::map<std::string, std::string> texts() const {
    std::map<std::string, std::string> texts;
    for (const auto& [key, entry] : all_)
      if (entry.text) texts[key] = *entry.text;
    return texts;
  }

 private:
  struct Entry {
    std::optional<std::string> text;  // none: null, which is an answer too
    std::string where;
  };

  // Keys that end with "_token", and those of extra_special_tokens if that is an object. Lists have no names.
  void read_file_of(const Json& json, const std::string& file) {
    for (const auto& [key, value] : json.items()) {
      if (is_named(key) || (key.ends_with("_token") && (value.is_string() || value.is_object())))
        set(key, value, file + ": " + key);
      if ((key == "extra_special_tokens" || key == "model_specific_special_tokens") && value.is_object())
        for (const auto& [name, text] : value.items()) set(name, text, file + ": " + key + "." + name);
    }
  }
  // A special token is written as a string, or as an object that holds it as `content`.
  void set(const std::string& key, const Json& value, const std::string& where) {
    Entry& entry = all_[key] = {std::nullopt, where};
    if (value.is_object())
      entry.text = get<std::string>(value, "content", where);
    else if (!value.is_null())
      entry.text = as<std::string>(value, where);
  }
  void set_if_unnamed(const char* key, std::optional<int64_t> id) {
    if (id && !all_.contains(key)) all_[key] = {spec_.tokens[size_t(*id)].text, spec_.source};
  }

  const TokenizerSpec& spec_;
  std::map<std::string, Entry> all_;
};

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
  const std::string kind = tokenizer_class(config);
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

// chat_template.jinja, and additional_chat_templates/NAME.jinja.
void read_template_files(TokenizerSpec& spec, const fs::path& folder) {
  const auto read = [&](const std::string& name, const fs::path& file) {
    add_chat_template(spec, name, read_file(file, kMaxTemplateBytes), file.string());
  };
  if (const fs::path file = folder / "chat_template.jinja"; is_there(file)) read("default", file);
  const fs::path more = folder / "additional_chat_templates";
  if (!is_there(more)) return;
  std::error_code error;
  fs::directory_iterator each(more, error);
  for (; !error && each != fs::directory_iterator(); each.increment(error)) {
    const fs::path& file = each->path();
    if (file.extension() == ".jinja") read(file.stem().string(), file);
  }
  check(!error, "{}: expected a folder of chat templates, found none that can be read ({})", more.string(),
        error.message());
}

// A single template, or a list of them with names.
void read_config_templates(TokenizerSpec& spec, const Json& config, const fs::path& path) {
  const Json* found = find_member(config, "chat_template");
  if (!found) return;
  const std::string where = path.string() + ": chat_template";
  if (found->is_string()) return add_chat_template(spec, "default", found->get<std::string>(), where);
  for (const Json& named : as_list(*found, where, "a string, or a list of templates with names"))
    add_chat_template(spec, get<std::string>(named, "name", where), get<std::string>(named, "template", where), where);
}

void read_config(TokenizerSpec& spec, const fs::path& folder, bool is_sentencepiece) {
  const fs::path path = folder / "tokenizer_config.json", map_path = folder / "special_tokens_map.json";
  const Json config = read_if_there(path), map = read_if_there(map_path);
  read_added_tokens_decoder(spec, config, path);
  const SpecialTokens special(spec, config, path, map, map_path);
  spec.special_texts = special.texts();
  const auto bos = special.id("bos_token"), eos = special.id("eos_token");
  spec.bos = bos, spec.eos = eos;
  read_add_bos(spec, config, path, is_sentencepiece);
  spec.stops.clear();
  if (spec.eos) spec.stops.push_back(*spec.eos);
  read_generation_config(spec, folder / "generation_config.json");
  read_template_files(spec, folder);
  if (spec.chat_templates.empty()) read_config_templates(spec, config, path);
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

void add_chat_template(TokenizerSpec& spec, const std::string& name, std::string text, const std::string& where) {
  constexpr size_t kMaxTemplates = 64;
  check(!name.empty(), "{}: expected a chat template with a name, found an empty name", where);
  check(text.size() <= kMaxTemplateBytes, "{}: expected a chat template of at most {} bytes, found {}", where,
        kMaxTemplateBytes, text.size());
  const size_t invalid = invalid_utf8(text);
  check(invalid == text.npos, "{}: expected UTF-8, found an invalid byte at {}; save it as UTF-8", where, invalid);
  check(spec.chat_templates.emplace(name, std::move(text)).second, "{}: expected each name once, found {} twice", where,
        quote(name));
  check(spec.chat_templates.size() <= kMaxTemplates, "{}: expected at most {} chat templates, found more", where,
        kMaxTemplates);
}

void complete_stops(TokenizerSpec& spec) {
  for (const char* end : {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"})
    if (const auto id = find_token(spec, end); id && spec.tokens[size_t(*id)].type == TokenType::kControl)
      spec.stops.push_back(*id);
  std::sort(spec.stops.begin(), spec.stops.end());
  spec.stops.erase(std::unique(spec.stops.begin(), spec.stops.end()), spec.stops.end());
}

}  // namespace wick
