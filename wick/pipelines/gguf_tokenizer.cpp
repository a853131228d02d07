#include "wick/pipelines/gguf_tokenizer.h"

#include <fmt/format.h>

namespace wick {
namespace {

constexpr const char* kChatTemplate = "tokenizer.chat_template";

std::string key(const char* name) { return fmt::format("tokenizer.ggml.{}", name); }

using A = TokenizerArrays;
constexpr std::pair<const char*, std::optional<int64_t> A::*> kIds[] = {
    {"bos_token_id", &A::bos_token_id},         {"eos_token_id", &A::eos_token_id},
    {"eot_token_id", &A::eot_token_id},         {"eom_token_id", &A::eom_token_id},
    {"unknown_token_id", &A::unknown_token_id}, {"padding_token_id", &A::padding_token_id}};
constexpr std::pair<const char*, std::optional<bool> A::*> kFlags[] = {{"add_bos_token", &A::add_bos_token},
                                                                       {"add_eos_token", &A::add_eos_token},
                                                                       {"add_space_prefix", &A::add_space_prefix}};

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
  arrays.chat_template = metadata.text_or(kChatTemplate, "");
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
  if (!arrays.chat_template.empty()) entries.emplace_back(kChatTemplate, arrays.chat_template);
  return entries;
}

}  // namespace wick
