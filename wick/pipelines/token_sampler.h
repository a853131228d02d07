// The next token: a draw from the model's logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "wick/core/rng.h"

namespace wick {

// Applied in this order, as in transformers. Among equals the token of the lower id comes first.
struct Sampling {
  float repetition_penalty = 1;  // logits of tokens that the text has: divided by it if positive, else multiplied
                                 // (Keskar et al., 2019)
  float temperature = 0.8f;      // divides the logits; 0 takes the likeliest token and ignores the settings below
  int64_t top_k = 0;             // only this many of the likeliest; 0: all
  float top_p = 1;               // only the fewest likeliest that together have this share (Holtzman et al., 2020)
  float min_p = 0;               // only those with this share of the likeliest one's probability
  uint64_t seed = 0;

  bool greedy() const { return temperature == 0 && repetition_penalty == 1; }  // always the likeliest token
  void check() const;  // throws Error naming a value that is out of range
};

class TokenSampler {
 public:
  explicit TokenSampler(const Sampling& sampling) : sampling_(sampling), rng_(sampling.seed, Stream::sampler) {}

  // `text` are the ids so far. Throws Error if the logits are not numbers.
  int64_t operator()(std::vector<float> logits, std::span<const int64_t> text);
  // Throws that Error, judging by the highest logit, where NaN counts as higher than anything.
  static void check_highest(float logit);

 private:
  Sampling sampling_;
  Rng rng_;
};

}  // namespace wick
