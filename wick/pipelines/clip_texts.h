// How diffusion models are given texts by a CLIP encoder: as ids, cut or padded to the encoder's positions; in chunks
// of so many with a weight for each token (text/prompt_syntax.h); or, plain, in a fixed number of chunks whose states
// are joined as _get_hidden_states_sdxl() of library/strategy_sdxl.py in kohya-ss/sd-scripts joins them: the first
// one's start, all but the first and last of each chunk, and the last one's last.
#pragma once

#include <optional>
#include <string>

#include "wick/models/clip.h"
#include "wick/pipelines/component.h"
#include "wick/pipelines/diffusion.h"
#include "wick/text/clip_tokenizer.h"

namespace wick {

struct ClipIds {        // on the host
  Tensor ids;           // [B, T] i64, or [B, C, T] of C chunks
  Tensor weights = {};  // [B, C, T] f32; empty where all tokens weigh 1
};

struct ClipStates {  // f32
  Tensor states;     // [B, C * T, hidden]: the penultimate ones, weighted; [B, C * (T - 2) + 2, hidden] if joined
  Tensor pooled;     // [B, projection] of the first chunk, which no weight changes
};

class ClipTexts {
 public:
  // The model's CLIP-L, or its bigG, whose config is read here.
  // Plain texts have so many `chunks`.
  ClipTexts(const Checkpoint& model, ClipKind kind, PromptSyntax syntax = PromptSyntax::plain, int64_t chunks = 1);

  const ClipConfig& config() const { return config_; }
  // Read when first asked for. In ComfyUI's syntax bigG has CLIP-L's, padded with 0: there a "!" is a token like
  // others.
  const ClipTokenizer& tokenizer() const;
  TextLength length(const std::string& text) const;

  // An outline has no weights, and reads a tokenizer only to count chunks. Words that the adapter teaches are known
  // from here on.
  void load(const Scope& s);
  void drop() { encoder_.reset(); }

  ClipIds ids(const std::string& text) const;
  int64_t plain_length() const;  // of a plain text's states
  ClipStates operator()(const ClipIds& text) const;

 private:
  std::vector<LearnedWord> words() const;
  std::vector<int64_t> plain_ids(const std::string& text) const;  // without start and end
  Tensor joined(const Tensor& states) const;                      // [B, C, T, hidden]

  Checkpoint model_;
  ClipKind kind_;
  PromptSyntax syntax_;
  int64_t chunks_;
  ClipConfig config_;
  bool outline_ = false;
  const Adapter* adapter_ = nullptr;
  mutable std::optional<ClipTokenizer> tokenizer_;
  std::optional<ClipText> encoder_;
};

}  // namespace wick
