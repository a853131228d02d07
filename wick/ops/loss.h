// Losses: one f32 of shape [1].
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

Tensor mse_loss(const Tensor& prediction, const Tensor& target);  // mean of squares; target is a constant

// The target tokens and the weight of each: both [N] and on the model's device, so that a replayed step reads their
// values at that time.
struct TokenTargets {
  Tensor ids;      // i64, below the size of the vocabulary; a negative one (-100 by custom) is ignored
  Tensor weights;  // f32, 0 where ignored

  // From ids i64 [...] on the host: the loss is the mean over those that are not ignored, and 0 if all are.
  static TokenTargets mean(const Tensor& ids, int64_t vocabulary, Memory& memory = host_memory());
};

// sum(weight * cross-entropy) with the cross-entropy log(sum(exp(row))) - row[id] of each row of logits [..., V].
Tensor cross_entropy(const Tensor& logits, const TokenTargets& targets);

// The same for logits x w^T with x [..., K] and w [V, K], of which at most `chunk` rows exist at a time (a bounded
// number unless given). Where gradients are wanted, forward computes them with the logits at hand, and so backward is a
// scaling.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& w, const TokenTargets& targets, int64_t chunk = 0);

}  // namespace wick
