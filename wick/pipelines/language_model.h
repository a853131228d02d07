// A language model with its tokenizer, as its files hold them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wick/models/llama.h"
#include "wick/nn/adapter.h"
#include "wick/pipelines/text_generation.h"
#include "wick/text/tokenizer.h"

namespace wick {

// The tokenizer of a transformers folder, or the one in a GGUF file.
Tokenizer load_tokenizer(const Checkpoint& model);

// The name for ChatOptions: of `auto` the file in the adapters' folders, if there is one. Throws UsageError where these
// differ.
std::string chat_template_of(const std::string& name, const std::vector<LoraFile>& adapters);

// The Jinja of a template by the name or file that --chat-template takes, for a copy of the model; none for `auto`.
std::optional<std::string> chat_template_text(const Checkpoint& model, const std::string& name);

struct LanguageModel {
  Llama model;
  Tokenizer tokenizer;

  // A transformers folder, or a GGUF file.
  static LanguageModel load(const Checkpoint& files, const LlamaOptions& options = {});

  // The ids that end an answer: those of the tokenizer's files and of the model's config.
  std::vector<int64_t> stop_ids() const;
  // Text of ids that follow others, or with `at_start` of a new text, which loses the space before its first word.
  // Control tokens are skipped, but for those of the texts in `spelt`.
  TextStream stream(bool at_start = false, std::span<const std::string_view> spelt = {}) const;
};

}  // namespace wick
