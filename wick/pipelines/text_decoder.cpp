#include "wick/pipelines/text_decoder.h"

#include <algorithm>
#include <cstring>

#include "wick/io/count.h"

namespace wick {
namespace {

constexpr int64_t kIdBytes = sizeof(int64_t), kNextBytes = kIdBytes + int64_t(sizeof(float));

int64_t checked_context(int64_t context, const LlamaConfig& config) {
  check(context >= 1 && context <= config.positions, "the context should be from 1 to {}, found {}",
        count_of(config.positions, "token"), context);
  return context;
}

}  // namespace

TextDecoder::TextDecoder(const Llama& model, int64_t context)
    : model_(model),
      memory_(*model.place().memory),
      cache_(model.config(), 1, checked_context(context, model.config()), model.place()) {
  const MemoryScope scope(Purpose::data);
  next_ = Tensor::empty({kNextBytes}, DType::u8, memory_);
  id_ = next_.part(0, DType::i64, {1, 1});
  largest_ = next_.part(kIdBytes, DType::f32, {1});
  logits_ = Tensor::empty({1, model.config().vocab}, DType::f32, memory_);
  put(0);
}

void TextDecoder::rehearse(const Llama& model, size_t tokens) {
  constexpr int64_t kMost = 512;  // more would delay the weights
  const int64_t count = std::clamp<int64_t>(int64_t(tokens), 1, std::min(kMost, model.config().positions));
  TextDecoder(model, count).read(std::vector<int64_t>(size_t(count), 0));
}

// Its allocations lie apart from tensors that outlive it, so that a captured step may reuse them.
void TextDecoder::compute(const Tensor& ids, const TokenPlan& plan, bool wants_logits) {
  const Arena arena(memory_);
  const Tensor last = model_.last(ids, plan, &cache_);
  if (!wants_logits) return;
  Backend& backend = logits_.backend();
  backend.copy(logits_, reshape(model_.logits(last), logits_.shape()));
  backend.argmax(reshape(id_, {1}), largest_, logits_);
}

void TextDecoder::read(std::span<const int64_t> ids) {
  const int64_t all = int64_t(ids.size());
  for (int64_t begin = 0; begin < all; begin += kPiece) {
    const int64_t end = std::min(begin + kPiece, all);
    const TokenPlan plan = cache_.extend({end - begin});
    const std::vector<int64_t> piece(ids.begin() + begin, ids.begin() + end);
    compute(Tensor::of(piece, {1, end - begin}), plan, /*wants_logits=*/end == all);
  }
}

void TextDecoder::step() {
  if (plan_) {
    cache_.extend({1}, *plan_);
  } else {
    const MemoryScope scope(Purpose::data);
    plan_ = std::make_unique<TokenPlan>(cache_.extend({1}));
  }
  const auto work = [this] { compute(id_, *plan_, /*wants_logits=*/true); };
  // Kernels are chosen and libraries set up before a step is recorded.
  if (++steps_ == 2) replay_ = logits_.backend().capture(work);
  replay_ ? replay_->run() : work();
}

void TextDecoder::put(int64_t id) { memory_.write(id_.view().data, &id, sizeof id); }

TextDecoder::Pending TextDecoder::likeliest() const {
  return Pending(memory_.read_later(next_.view().data, size_t(kNextBytes)));
}

TextDecoder::Likeliest TextDecoder::Pending::wait() const {
  Likeliest next;
  const char* const bytes = static_cast<const char*>(bytes_->data());
  std::memcpy(&next.id, bytes, sizeof next.id);
  std::memcpy(&next.logit, bytes + kIdBytes, sizeof next.logit);
  return next;
}

std::vector<float> TextDecoder::logits() const {
  const auto bytes = memory_.read_later(logits_.view().data, size_t(logits_.numel()) * sizeof(float));
  const float* const values = static_cast<const float*>(bytes->data());
  return {values, values + logits_.numel()};
}

}  // namespace wick
