// A language model as a GGUF file, with its tokenizer in it, as llama.cpp and its kin read them.
//
// Such a file has one rule for the space before a text of SentencePiece's tokenizers: it is put there, whether or not
// the text begins with one, and behind control tokens. A tokenizer.json may say otherwise (that of Mistral 0.3 does);
// then texts that begin with a space have other ids there than here.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "wick/nn/checkpoint.h"

namespace wick {

struct ConvertOptions {
  // The type of matrices and tables: f32, f16, bf16 or blocks; unless given, each is stored as it is, and so are those
  // whose rows are not whole blocks. Vectors (norms, biases) are always f32.
  std::optional<DType> dtype;
  // Changes to matrices, by transformers' names; from f32 and to f32.
  std::map<std::string, std::function<Tensor(const Tensor&)>> edits;
  std::optional<std::string> chat_template;  // in Jinja, instead of the model's
  // A model whose head is the embeddings' table gets one of its own, to which the table and its own edit lead.
  bool unties = false;
};

// `from` is a transformers folder or a GGUF file, whose other metadata about the model is kept. One tensor is in memory
// at a time. Written atomically, and the bytes depend only on the model and the options. Throws Error, before anything
// is written, if a tensor is missing or has a shape that the config does not give, if no matrix can be of that type, if
// the folder has no tokenizer or one that a GGUF cannot hold, and for sliding windows of Qwen, which GGUF does not
// know. Returns how many matrices are in blocks of that type, and how many were to be and stay as they are.
Weights::Quantized convert_to_gguf(const Checkpoint& from, const std::filesystem::path& to,
                                   const ConvertOptions& options = {});

}  // namespace wick
