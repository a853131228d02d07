#include "wick/pipelines/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "wick/core/error.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

// The template "default"; others are at "tokenizer.chat_template.NAME", with their names in a list.
constexpr const char *kChatTemplate = "tokenizer.chat_template", *kChatTemplates = "tokenizer.chat_templates";
constexpr const char* kDefault = "default";

std::string template_key(std::string_view name) { return fmt::format("{}.{}", kChatTemplate, name); }

std::string key(const char* name) { return fmt::format("tokenizer.ggml.{}", name); }

using A = TokenizerArrays;
constexpr std::pair<const char*, std::optional<int64_t> A::*> kIds[] = {
    {"bos_token_id", &A::bos_token_id},         {"eos_token_id", &A::eos_token_id},
    {"eot_token_id", &A::eot_token_id},         {"eom_token_id", &A::eom_token_id},
    {"unknown_token_id", &A::unknown_token_id}, {"padding_token_id", &A::padding_token_id}};
constexpr std::pair<const char*, std::optional<bool> A::*> kFlags[] = {{"add_bos_token", &A::add_bos_token},
                                                                       {"add_eos_token", &A::add_eos_token},
                                                                       {"add_space_prefix", &A::add_space_prefix}};

std::map<std::string, std::string> read_chat_templates(const GgufMetadata& metadata) {
  std::map<std::string, std::string> templates;
  if (metadata.has(kChatTemplate)) templates[kDefault] = metadata.text(kChatTemplate);
  if (!metadata.has(kChatTemplates)) return templates;
  for (const std::string& name : metadata.texts(kChatTemplates))
    templates.emplace(name, metadata.text(template_key(name)));
  return templates;
}

// Names keep their letters, digits and '_'; other characters become '_', as in the keys of llama.cpp's converter.
void add_chat_templates(GgufMetadata::Entries& entries, const std::map<std::string, std::string>& templates) {
  std::vector<std::string> names;
  for (const auto& [name, text] : templates) {
    if (name == kDefault) continue;
    std::string plain = name;
    const auto is_plain = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    };
    std::ranges::replace_if(plain, std::not_fn(is_plain), '_');
    check(std::ranges::find(names, plain) == names.end(),
          "chat template {}: expected a name of its own in a GGUF file, found {} twice; rename the template",
          quote(name), quote(plain));
    entries.emplace_back(template_key(plain), text);
    names.push_back(plain);
  }
  if (!names.empty()) entries.emplace_back(kChatTemplates, GgufArray(names));
  if (const auto found = templates.find(kDefault); found != templates.end())
    entries.emplace_back(kChatTemplate, found->second);
}

}  // namespace

TokenizerArrays tokenizer_arrays(const GgufMetadata& metadata) {
  TokenizerArrays arrays;
  arrays.model = metadata.text(key("model"));
  arrays.pre = metadata.text_or(key("pre"), "");
  arrays.tokens = metadata.texts(key("tokens"));
  if (metadata.has(key("scores"))) arrays.scores = metadata.numbers(key("scores"));
  if (metadata.has(key("merges"))) arrays.merges = metadata.texts(key("merges"));
  if (metadata.has(key("token_type")))
    for (const int64_t type : metadata.integers(key("token_type"), {0, 6})) arrays.token_type.push_back(int32_t(type));
  for (const auto& [name, id] : kIds)
    if (metadata.has(key(name))) arrays.*id = metadata.integer(key(name), {0, kPositive.max});
  for (const auto& [name, flag] : kFlags)
    if (metadata.has(key(name))) arrays.*flag = metadata.boolean_or(key(name), false);
  arrays.chat_templates = read_chat_templates(metadata);
  return arrays;
}

GgufMetadata::Entries tokenizer_entries(const TokenizerArrays& arrays) {
  GgufMetadata::Entries entries{{key("model"), arrays.model},
                                {key("pre"), arrays.pre.empty() ? "default" : arrays.pre},
                                {key("tokens"), GgufArray(arrays.tokens)}};
  if (!arrays.scores.empty()) entries.emplace_back(key("scores"), GgufArray(arrays.scores));
  if (!arrays.token_type.empty()) entries.emplace_back(key("token_type"), GgufArray(arrays.token_type));
  if (!arrays.merges.empty()) entries.emplace_back(key("merges"), GgufArray(arrays.merges));
  for (const auto& [name, id] : kIds)
    if (arrays.*id) entries.emplace_back(key(name), uint32_t(*(arrays.*id)));
  for (const auto& [name, flag] : kFlags)
    if (arrays.*flag) entries.emplace_back(key(name), *(arrays.*flag));
  add_chat_templates(entries, arrays.chat_templates);
  return entries;
}

void put_chat_template(GgufMetadata::Entries& entries, const std::string& jinja) {
  std::erase_if(entries, [](const auto& entry) { return entry.first == kChatTemplate; });
  entries.emplace_back(kChatTemplate, jinja);
}

}  // namespace wick
