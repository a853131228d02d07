// How diffusion models are given texts by a CLIP encoder: as the ids of one text each, cut or padded to the encoder's
// positions.
#pragma once

#include <optional>
#include <string>

#include "wick/models/clip.h"
#include "wick/pipelines/component.h"
#include "wick/text/clip_tokenizer.h"

namespace wick {

class ClipTexts {
 public:
  // The model's CLIP-L, or its bigG, whose config is read here.
  ClipTexts(const Checkpoint& model, ClipKind kind);

  const ClipConfig& config() const { return config_; }
  const ClipTokenizer& tokenizer() const;  // read when first asked for

  // An outline has neither weights nor a tokenizer.
  void load(const Scope& s);
  void drop() { encoder_.reset(); }

  Tensor ids(const std::string& text) const;       // [1, T] i64 on the host
  ClipOutput operator()(const Tensor& ids) const;  // of ids [B, T]

 private:
  Checkpoint model_;
  ClipKind kind_;
  ClipConfig config_;
  bool outline_ = false;
  mutable std::optional<ClipTokenizer> tokenizer_;
  std::optional<ClipText> encoder_;
};

}  // namespace wick
