#include "wick/pipelines/language_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "wick/io/gguf.h"

namespace wick {

namespace {

// The tokenizer that a GGUF file carries.
TokenizerArrays read_arrays(const GgufMetadata& metadata) {
  const auto key = [](const char* name) { return fmt::format("tokenizer.ggml.{}", name); };
  const auto id = [&](const char* name) {
    return metadata.has(key(name)) ? std::optional(metadata.integer(key(name), {0, kPositive.max})) : std::nullopt;
  };
  const auto flag = [&](const char* name) {
    return metadata.has(key(name)) ? std::optional(metadata.boolean_or(key(name), false)) : std::nullopt;
  };
  TokenizerArrays arrays{.model = metadata.text(key("model")),
                         .pre = metadata.text_or(key("pre"), ""),
                         .tokens = metadata.texts(key("tokens")),
                         .bos_token_id = id("bos_token_id"),
                         .eos_token_id = id("eos_token_id"),
                         .eot_token_id = id("eot_token_id"),
                         .unknown_token_id = id("unknown_token_id"),
                         .padding_token_id = id("padding_token_id"),
                         .add_bos_token = flag("add_bos_token"),
                         .add_eos_token = flag("add_eos_token"),
                         .add_space_prefix = flag("add_space_prefix"),
                         .chat_template = metadata.text_or("tokenizer.chat_template", "")};
  if (metadata.has(key("scores"))) arrays.scores = metadata.numbers(key("scores"));
  if (metadata.has(key("merges"))) arrays.merges = metadata.texts(key("merges"));
  if (metadata.has(key("token_type")))
    for (const int64_t type : metadata.integers(key("token_type"), {0, 6})) arrays.token_type.push_back(int32_t(type));
  return arrays;
}

}  // namespace

Tokenizer load_tokenizer(const std::filesystem::path& path) {
  if (!GgufFile::is_gguf(path)) return Tokenizer::load(path);
  return Tokenizer::from_arrays(read_arrays(GgufFile::open(path).metadata()), path.string());
}

LanguageModel LanguageModel::load(const std::filesystem::path& path, const LlamaOptions& options) {
  Tokenizer tokenizer = load_tokenizer(path);  // first: it is quickly told if something is wrong with it
  return {Llama::load(path, options), std::move(tokenizer)};
}

std::vector<int64_t> LanguageModel::stop_ids() const {
  std::vector<int64_t> ids = tokenizer.stop_ids();
  for (const int64_t id : model.config().eos_ids)
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  return ids;
}

TextStream LanguageModel::stream(bool at_start) const {
  const auto stream = std::make_shared<TokenStream>(tokenizer, DecodeOptions{.at_start = at_start});
  return {[stream](int64_t id) { return stream->push(id); }, [stream] { return stream->finish(); }};
}

}  // namespace wick
