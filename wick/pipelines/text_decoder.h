// One text that a language model reads and goes on with, where the model is.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "wick/models/llama.h"

namespace wick {

// All of it is enqueued, and nobody waits but who asks for a result. The token that step() runs lies on the device: the
// likeliest behind what was run last, or what put() says. So a text goes on there by itself, ahead of those who read
// it.
//
// A step is captured where the backend can: the first is computed call by call, the second is recorded, and from then
// on the record is replayed. The bits are the same.
class TextDecoder {
 public:
  static constexpr int64_t kPiece = 4096;  // tokens of a prompt at a time, which bounds what its activations take

  // `context` tokens at most. The model is borrowed.
  TextDecoder(const Llama& model, int64_t context);

  // What LlamaOptions::rehearse may do before a prompt of so many tokens.
  static void rehearse(const Llama& model, size_t tokens);

  int64_t context() const { return cache_.capacity(); }
  int64_t length() const { return cache_.length(0); }  // tokens that were run
  void truncate(int64_t length) { cache_.truncate(0, length); }

  // Throw Error where the context is full.
  void read(std::span<const int64_t> ids);  // at least one
  void step();
  void put(int64_t id);

  // Behind what was run last, as it is now enqueued.
  struct Likeliest {
    int64_t id;   // the first of equals
    float logit;  // NaN if one is
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
  Tensor next_;                      // bytes: the likeliest token, and its logit
  Tensor id_, largest_;              // parts of it, i64 [1, 1] and f32 [1]
  Tensor logits_;                    // f32 [1, vocabulary]
  std::unique_ptr<TokenPlan> plan_;  // of a step
  int64_t steps_ = 0;
  std::unique_ptr<Replay> replay_;
};

}  // namespace wick
