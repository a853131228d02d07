#include "wick/pipelines/language_model.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "wick/io/file.h"
#include "wick/io/gguf.h"
#include "wick/pipelines/gguf_tokenizer.h"
#include "wick/text/chat.h"

namespace wick {

Tokenizer load_tokenizer(const Checkpoint& model) {
  if (!model.is_gguf()) return Tokenizer::load(model.path());
  return Tokenizer::from_arrays(tokenizer_arrays(GgufFile::open(model.path()).metadata()), model.name());
}

std::string chat_template_of(const std::string& name, const std::vector<LoraFile>& adapters) {
  if (name != ChatOptions::kAuto) return name;
  std::string found, text;
  for (const LoraFile& adapter : adapters) {
    const std::filesystem::path file = adapter.path / kChatTemplateFile;
    if (!std::filesystem::is_regular_file(file)) continue;
    const std::string read = read_file(file, jinja::kMaxSourceBytes);
    check_usage(found.empty() || read == text,
                "--lora: {} and {} are different chat templates; choose one by "
                "--chat-template",
                found, file.string());
    found = file.string(), text = read;
  }
  return found.empty() ? name : found;
}

std::optional<std::string> chat_template_text(const Checkpoint& model, const std::string& name) {
  if (name == ChatOptions::kAuto) return {};
  return ChatTemplate(load_tokenizer(model), {.name = name}, model.name()).jinja();
}

LanguageModel LanguageModel::load(const Checkpoint& files, const LlamaOptions& options) {
  Tokenizer tokenizer = load_tokenizer(files);  // first: its errors are found quickly
  return {Llama::load(files, options), std::move(tokenizer)};
}

std::vector<int64_t> LanguageModel::stop_ids() const {
  std::vector<int64_t> ids = tokenizer.stop_ids();
  for (const int64_t id : model.config().eos_ids)
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  return ids;
}

TextStream LanguageModel::stream(bool at_start, std::span<const std::string_view> spelt) const {
  const auto stream = std::make_shared<TokenStream>(tokenizer, DecodeOptions{.at_start = at_start});
  std::map<int64_t, std::string> texts;  // of control tokens
  for (const std::string_view text : spelt)
    if (const auto id = tokenizer.id_of(text); id && tokenizer.is_control(*id)) texts.emplace(*id, text);
  const auto push = [stream, texts = std::move(texts)](int64_t id) {
    const auto found = texts.find(id);
    return found == texts.end() ? stream->push(id) : stream->finish() + found->second;
  };
  return {push, [stream] { return stream->finish(); }};
}

}  // namespace wick
