// How diffusion transformers are given texts by a T5 encoder: cut or padded to one length, and perhaps with a mask or
// with weights of tokens (text/prompt_syntax.h).
//
// Parts of the conditioning:
//   "T5 states"               [B, L, hidden] in the encoder's dtype
//   "T5 tokens"               [B, L] i64 on the host, in place of them where the encoder is trained, and with them
//   "T5 weights"              [B, L] f32 on the host, if some token's is not 1
//   "first key"               [B, 1] i32 with T5Options::mask: tokens before it are seen by no other (kohya's
//                             --apply_t5_attn_mask). Padding stands before the text then, and T5's states come first in
//                             the sequence: the tokens that count are neighbours. T5's positions are relative.
#pragma once

#include <optional>
#include <string>

#include "wick/models/t5.h"
#include "wick/pipelines/diffusion.h"
#include "wick/text/t5_tokenizer.h"

namespace wick {

class T5Texts {
 public:
  static constexpr const char *kStates = "T5 states", *kTokens = "T5 tokens", *kWeights = "T5 weights",
                              *kFirstKey = "first key";

  // Texts have as many tokens as the model was made for, unless the options or the tokenizer's model_max_length, where
  // that is less, say otherwise. Throws UsageError for a mask with weights, which ComfyUI does not have.
  T5Texts(const Checkpoint& encoder, std::filesystem::path tokenizer, const ReadingOptions& options, int64_t made_for);

  const T5Config& config() const { return config_; }
  int64_t tokens() const { return options_.tokens; }
  const T5Tokenizer& tokenizer() const;  // read when first asked for
  TextLength length(const std::string& text) const;

  // An outline has no weights, and a tokenizer only for weighted texts. Words that the adapter teaches are known from
  // here on.
  void load(const Scope& s, const DiffusionOptions& options);
  void drop() { encoder_.reset(); }

  // "T5 tokens" and "T5 weights". Throws UsageError for a text in ComfyUI's syntax that is longer.
  NamedTensors ids(const std::string& text) const;
  Tensor states(const NamedTensors& ids) const;                           // of those
  NamedTensors text_mask(const NamedTensors& ids, Memory& memory) const;  // a text's part of the mask, if there is one
  // The mask of sequences of `tokens`, i32 [B, tokens, 2]; empty where there is no first key among the parts.
  static Tensor ranges(const NamedTensors& parts, int64_t tokens);

 private:
  std::vector<LearnedWord> words() const;
  std::vector<int64_t> plain_ids(const std::string& text) const;  // without the end

  T5Config config_;
  std::filesystem::path tokenizer_path_;  // a folder or a file
  T5Options options_;
  PromptSyntax syntax_;
  bool outline_ = false;
  const Adapter* adapter_ = nullptr;
  mutable std::optional<T5Tokenizer> tokenizer_;
  std::optional<T5Encoder> encoder_;
};

}  // namespace wick
