#include "wick/pipelines/gguf_tokenizer.h"

#include <fmt/format.h>

namespace wick {
namespace {

constexpr const char* kChatTemplate = "tokenizer.chat_template";

std::string key(const char* name) { return fmt::format("tokenizer.ggml.{}", name); }

// for_ids calls f(key, member) for every token id that reader and writer share, for_flags for every bool.
template <class Arrays, class F>
void for_ids(Arrays& arrays, const F& f) {
  f("bos_token_id", arrays.bos_token_id);
  f("eos_token_id", arrays.eos_token_id);
  f("eot_token_id", arrays.eot_token_id);
  f("eom_token_id", arrays.eom_token_id);
  f("unknown_token_id", arrays.unknown_token_id);
  f("padding_token_id", arrays.padding_token_id);
}
template <class Arrays, class F>
void for_flags(Arrays& arrays, const F& f) {
  f("add_bos_token", arrays.add_bos_token);
  f("add_eos_token", arrays.add_eos_token);
  f("add_space_prefix", arrays.add_space_prefix);
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
  for_ids(arrays, [&](const char* name, std::optional<int64_t>& id) {
    if (metadata.has(key(name))) id = metadata.integer(key(name), {0, kPositive.max});
  });
  for_flags(arrays, [&](const char* name, std::optional<bool>& flag) {
    if (metadata.has(key(name))) flag = metadata.boolean_or(key(name), false);
  });
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
  for_ids(arrays, [&](const char* name, const std::optional<int64_t>& id) {
    if (id) entries.emplace_back(key(name), uint32_t(*id));
  });
  for_flags(arrays, [&](const char* name, const std::optional<bool>& flag) {
    if (flag) entries.emplace_back(key(name), *flag);
  });
  if (!arrays.chat_template.empty()) entries.emplace_back(kChatTemplate, arrays.chat_template);
  return entries;
}

}  // namespace wick
