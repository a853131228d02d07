#include "wick/pipelines/clip_texts.h"

#include <vector>

#include "wick/core/error.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/text_weights.h"

namespace wick {

ClipTexts::ClipTexts(const Checkpoint& model, ClipKind kind, PromptSyntax syntax, int64_t chunks)
    : model_(model),
      kind_(kind),
      syntax_(syntax),
      chunks_(syntax == PromptSyntax::plain ? chunks : 1),
      config_(ClipConfig::read(model.component(kind == ClipKind::l ? "text_encoder" : "text_encoder_2"), kind)) {}

const ClipTokenizer& ClipTexts::tokenizer() const {
  if (tokenizer_) return *tokenizer_;
  if (kind_ == ClipKind::big_g && syntax_ == PromptSyntax::plain)
    return tokenizer_.emplace(load_clip_tokenizer(model_, "tokenizer_2", "clip_g", config_.vocab));
  const ClipTokenizer read = load_clip_tokenizer(model_, "tokenizer", "clip", config_.vocab);
  return tokenizer_.emplace(kind_ == ClipKind::l ? read : read.padded_with(0));
}

std::vector<LearnedWord> ClipTexts::words() const {
  return learned_words(adapter_, kind_ == ClipKind::l ? "clip_l" : "clip_g", config_.vocab);
}

TextLength ClipTexts::length(const std::string& text) const {
  const bool is_plain = syntax_ == PromptSyntax::plain;
  if (is_plain) return {.tokens = int64_t(plain_ids(text).size()), .limit = plain_length() - 2};
  TextLength length{.tokens = 0};
  for (const WeightedText& part : weighted_texts(text, words()))
    length.tokens += part.ids.empty() ? tokenizer().length(part.text) - 2 : int64_t(part.ids.size());
  return length;
}

std::vector<int64_t> ClipTexts::plain_ids(const std::string& text) const {
  return ids_with_words(text, words(), [this](const std::string& part) { return tokenizer().encode_bare(part); });
}

void ClipTexts::load(const Scope& s) {
  outline_ = s.weights().is_outline();
  adapter_ = s.adapter();
  encoder_.emplace(s, config_);
  s.weights().read_deferred();
}

int64_t ClipTexts::plain_length() const {
  const int64_t length = outline_ ? config_.positions : tokenizer().max_length();
  return chunks_ * (length - 2) + 2;
}

Tensor ClipTexts::joined(const Tensor& states) const {
  const int64_t batch = states.dim(0), chunks = states.dim(1), length = states.dim(2), hidden = states.dim(3);
  const Tensor rows = reshape(states, {batch, chunks * length, hidden});
  std::vector<Tensor> parts{slice(rows, 1, 0, 1)};
  for (int64_t i = 0; i < chunks; ++i) parts.push_back(slice(rows, 1, i * length + 1, (i + 1) * length - 1));
  parts.push_back(slice(rows, 1, chunks * length - 1, chunks * length));
  return cat(parts, 1);
}

ClipIds ClipTexts::ids(const std::string& text) const {
  if (syntax_ == PromptSyntax::plain && chunks_ > 1) {
    const std::vector<int64_t> ids = outline_ ? std::vector<int64_t>(size_t(chunks_ * config_.positions))
                                              : tokenizer().chunked(plain_ids(text), chunks_);
    return {Tensor::of(ids, {1, chunks_, int64_t(ids.size()) / chunks_})};
  }
  if (syntax_ == PromptSyntax::plain) {
    const std::vector<int64_t> ids =
        outline_ ? std::vector<int64_t>(size_t(config_.positions)) : tokenizer().framed(plain_ids(text));
    return {Tensor::of(ids, {1, int64_t(ids.size())})};
  }
  const auto [ids, weights] = clip_chunks(weighted_texts(text, words()), tokenizer());
  const int64_t length = tokenizer().max_length();
  const Shape shape = {1, int64_t(ids.size()) / length, length};
  return {Tensor::of(ids, shape), weights_tensor(weights, shape)};
}

ClipStates ClipTexts::operator()(const ClipIds& text) const {
  check(encoder_.has_value(), "encode_text: the model's text encoders were dropped");
  const Tensor& ids = text.ids;
  if (ids.rank() == 2) {
    const ClipOutput all = (*encoder_)(ids);
    return {all.penultimate, all.pooled};
  }
  const int64_t batch = ids.dim(0), chunks = ids.dim(1), rows = batch * chunks, length = ids.dim(2);
  Tensor each = reshape(ids, {rows, length});
  if (text.weights) each = cat({each, Tensor::of(tokenizer().encode(""), {1, length})}, 0);
  const ClipOutput all = (*encoder_)(each);
  const Tensor states = reshape(slice(all.penultimate, 0, 0, rows), {batch, chunks * length, config_.hidden}),
               pooled = reshape(slice(all.pooled, 0, 0, rows), {batch, chunks, config_.projection}),
               first = reshape(slice(pooled, 1, 0, 1), {batch, config_.projection});
  if (chunks_ > 1) return {joined(reshape(states, {batch, chunks, length, config_.hidden})), first};
  if (!text.weights) return {states, first};
  const Tensor empty = cat(std::vector<Tensor>(size_t(chunks), slice(all.penultimate, 0, rows, rows + 1)), 1);
  return {weighted(states, empty, text.weights), first};
}

}  // namespace wick
