// A language model with its tokenizer, as its files hold them.
#pragma once

#include <filesystem>

#include "wick/models/llama.h"
#include "wick/pipelines/text_generation.h"
#include "wick/text/tokenizer.h"

namespace wick {

// Of a transformers folder, or that which a GGUF file carries.
Tokenizer load_tokenizer(const std::filesystem::path& path);

struct LanguageModel {
  Llama model;
  Tokenizer tokenizer;

  // A transformers folder, or a GGUF file.
  static LanguageModel load(const std::filesystem::path& path, const LlamaOptions& options = {});

  // The ids that end an answer: those of the tokenizer's files and of the model's config.
  std::vector<int64_t> stop_ids() const;
  // Text of ids that follow others, or with `at_start` of a new text, which loses the space before its first word.
  TextStream stream(bool at_start = false) const;
};

}  // namespace wick
