// Decoding of one text by a language model, on the model's device.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "wick/models/llama.h"

namespace wick {

// All work is enqueued, and only the results' readers wait. The token that step() runs lies on the device: the
// likeliest one after the last token run, or the one that put() sets. So decoding goes on there by itself, ahead of its
// readers.
//
// A step is captured as a graph where the backend can: the first runs call by call, the second is recorded, and later
// ones replay the record. The bits are the same.
class TextDecoder {
 public:
  static constexpr int64_t kPiece = 4096;  // tokens of a prompt per prefill chunk, which bounds its activations

  // `context` tokens at most. The model is borrowed.
  TextDecoder(const Llama& model, int64_t context);

  // The computation for LlamaOptions::rehearse before a prompt of this many tokens.
  static void rehearse(const Llama& model, size_t tokens);

  int64_t context() const { return cache_.capacity(); }
  int64_t length() const { return cache_.length(0); }  // tokens that were run
  void truncate(int64_t length) { cache_.truncate(0, length); }

  // Throw Error where the context is full.
  void read(std::span<const int64_t> ids);  // at least one
  void step();
  void put(int64_t id);

  // The result after the last token enqueued so far.
  struct Likeliest {
    int64_t id;   // the first of equals
    float logit;  // NaN if any logit is
  };
  class Pending {
   public:
    explicit Pending(std::unique_ptr<Readback> bytes) : bytes_(std::move(bytes)) {}
    Likeliest wait() const;

   private:
    std::unique_ptr<Readback> bytes_;
  };
  Pending likeliest() const;
  std::vector<float> logits() const;  // of all tokens; waits

 private:
  void compute(const Tensor& ids, const TokenPlan& plan, bool wants_logits);

  const Llama& model_;
  Memory& memory_;
  KvCache cache_;
  Tensor next_;                      // bytes: the likeliest token and its logit
  Tensor id_, largest_;              // parts of next_, i64 [1, 1] and f32 [1]
  Tensor logits_;                    // f32 [1, vocabulary]
  std::unique_ptr<TokenPlan> plan_;  // of a step
  int64_t steps_ = 0;
  std::unique_ptr<Replay> replay_;
};

}  // namespace wick
