// The encoder of T5 v1.1 (Raffel et al., 2020; Shazeer, 2020), as FLUX and SD3 read captions with it.
#pragma once

#include "wick/autograd/block_schedule.h"
#include "wick/nn/checkpoint.h"
#include "wick/nn/layers.h"

namespace wick {

struct T5Config {
  int64_t vocab, hidden, head_dim, intermediate;  // transformers' d_model, d_kv, d_ff; heads * head_dim is any width
  int layers, heads;
  int64_t buckets, max_distance;  // of the relative positions
  float eps;
  static T5Config read(const Checkpoint& component);  // from its config and tensors (network_facts.h)
};

class T5Encoder {
 public:
  T5Encoder(Scope s, const T5Config& config, BlockSchedule block_schedule = {});
  // ids [B, T] i64 on the host -> the last hidden state [B, T, hidden], in the dtype of activations. Tokens for which
  // the mask, [B, T] i64 on the host, is 0 are not attended to; without one all are, padding too.
  Tensor operator()(const Tensor& ids, const Tensor& mask = {}) const;
  int64_t ids() const;  // all are below this: the vocabulary's, and behind it the rows of Adapter::word_vectors()

 private:
  struct Model;
  std::shared_ptr<const Model> model_;
};

}  // namespace wick
