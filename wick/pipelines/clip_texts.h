// How diffusion models are given texts by a CLIP encoder: as ids, cut or padded to the encoder's positions, or in
// chunks of so many with a weight for each token (text/prompt_syntax.h).
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
  Tensor states;     // [B, C * T, hidden]: the penultimate ones, weighted
  Tensor pooled;     // [B, projection] of the first chunk, which no weight changes
};

class ClipTexts {
 public:
  // The model's CLIP-L, or its bigG, whose config is read here.
  ClipTexts(const Checkpoint& model, ClipKind kind, PromptSyntax syntax = PromptSyntax::plain);

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
  ClipStates operator()(const ClipIds& text) const;

 private:
  std::vector<LearnedWord> words() const;
  std::vector<int64_t> plain_ids(const std::string& text) const;  // without start and end

  Checkpoint model_;
  ClipKind kind_;
  PromptSyntax syntax_;
  ClipConfig config_;
  bool outline_ = false;
  const Adapter* adapter_ = nullptr;
  mutable std::optional<ClipTokenizer> tokenizer_;
  std::optional<ClipText> encoder_;
};

}  // namespace wick
