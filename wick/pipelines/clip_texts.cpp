#include "wick/pipelines/clip_texts.h"

#include "wick/core/error.h"

namespace wick {

ClipTexts::ClipTexts(const Checkpoint& model, ClipKind kind)
    : model_(model),
      kind_(kind),
      config_(ClipConfig::read(model.component(kind == ClipKind::l ? "text_encoder" : "text_encoder_2"), kind)) {}

const ClipTokenizer& ClipTexts::tokenizer() const {
  if (!tokenizer_)
    tokenizer_.emplace(kind_ == ClipKind::l ? load_clip_tokenizer(model_, "tokenizer", "clip", config_.vocab)
                                            : load_clip_tokenizer(model_, "tokenizer_2", "clip_g", config_.vocab));
  return *tokenizer_;
}

void ClipTexts::load(const Scope& s) {
  outline_ = s.weights().is_outline();
  encoder_.emplace(s, config_);
  s.weights().read_deferred();
}

Tensor ClipTexts::ids(const std::string& text) const {
  const std::vector<int64_t> ids =
      outline_ ? std::vector<int64_t>(size_t(config_.positions)) : tokenizer().encode(text);
  return Tensor::of(ids, {1, int64_t(ids.size())});
}

ClipOutput ClipTexts::operator()(const Tensor& ids) const {
  check(encoder_.has_value(), "encode_text: the model's text encoders were dropped");
  return (*encoder_)(ids);
}

}  // namespace wick
