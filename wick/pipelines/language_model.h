// A language model with its tokenizer, as its files hold them.
#pragma once

#include "wick/models/llama.h"
#include "wick/pipelines/text_generation.h"
#include "wick/text/tokenizer.h"

namespace wick {

// The tokenizer of a transformers folder, or the one in a GGUF file.
Tokenizer load_tokenizer(const Checkpoint& model);

struct LanguageModel {
  Llama model;
  Tokenizer tokenizer;

  // A transformers folder, or a GGUF file.
  static LanguageModel load(const Checkpoint& files, const LlamaOptions& options = {});

  // The ids that end an answer: those of the tokenizer's files and of the model's config.
  std::vector<int64_t> stop_ids() const;
  // Text of ids that follow others, or with `at_start` of a new text, which loses the space before its first word.
  TextStream stream(bool at_start = false) const;
};

}  // namespace wick
