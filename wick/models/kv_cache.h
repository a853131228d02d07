// The keys and values of tokens that a language model has read, and the places of the tokens of a batch.
//
// Sliding windows are ranges of keys, not a ring: all tokens are kept, so that a prompt in chunks, ragged batches and
// truncate() work alike for every layer, at the price of a full context's memory where a model has windows.
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include "wick/models/llama_config.h"
#include "wick/nn/weights.h"

namespace wick {

// Tokens [begin, end) of a row of a batch: one sequence, of which `past` tokens came before and lie in a cache.
struct TokenRun {
  int64_t row, begin, end, past = 0;
};

// The places of the tokens [B, T] of a batch: rotary angles for queries and keys, the keys that each token sees, and
// the rows of a cache that keep theirs. All of it lies on the device, so that a captured step reads its current values.
// Tokens of no run are padding: they see nothing, and their outputs are finite and mean nothing.
struct TokenPlan {
  Tensor cos, sin;         // f32 [B, T, head_dim / 2]; a sequence's first token has position 0
  Tensor ranges;           // i32 [B, T, 2], as Backend::attention has them
  Tensor windowed_ranges;  // the same within config.window; empty without one
  Tensor cache_rows;       // i32 [B, T], as Backend::scatter_rows has them; empty without a cache

  // Runs of a row are consecutive. Without a cache, keys are the tokens of the batch, and a row may have any number of
  // runs (packed documents); with one, keys are those it holds, and a row has one run.
  TokenPlan(int64_t batch, int64_t tokens, const std::vector<TokenRun>& runs, const LlamaConfig& config, bool cached,
            Memory& memory);

  // A batch without padding, and one of transformers' attention_mask i64 [B, T], whose ones must be adjacent in a row.
  static TokenPlan dense(int64_t batch, int64_t tokens, const LlamaConfig& config, Memory& memory = host_memory());
  static TokenPlan masked(const Tensor& mask, const LlamaConfig& config, Memory& memory = host_memory());

 private:
  friend class KvCache;
  // Replaces the places by those of other tokens [B, T], at most 64. Does not wait for the device.
  void move_to(const std::vector<TokenRun>& runs, const LlamaConfig& config);

  Tensor all_;  // bytes, of which the other tensors are parts: one copy moves them all
};

class KvCache {
 public:
  // In the dtype that the model computes in: f32 on the CPU.
  KvCache(const LlamaConfig& config, int64_t batch, int64_t capacity, const Residence& place);

  int64_t capacity() const { return capacity_; }
  int64_t length(int64_t row) const { return lengths_[size_t(row)]; }  // tokens kept of a sequence
  // Forgets the tokens from `length` on.
  void truncate(int64_t row, int64_t length);

  // Adds `counts` more tokens to the sequences, the first of each row of [B, max(counts)]. Returns the plan for running
  // them. Throws Error, and adds nothing, if one does not fit.
  TokenPlan extend(const std::vector<int64_t>& counts);
  // The same into the tensors of a plan that extend() gave for as many tokens, at most 64 over all rows: a captured
  // step then runs these tokens.
  void extend(const std::vector<int64_t>& counts, TokenPlan& plan);

  // For layers: rotates q [B, T, H, D] and k [B, T, G, D] (RoPE), and stores k and v. Returns q, and all keys and
  // values, [B, capacity, G, D] each.
  std::tuple<Tensor, Tensor, Tensor> append(int layer, const Tensor& q, const Tensor& k, const Tensor& v,
                                            const TokenPlan& plan);

 private:
  std::vector<TokenRun> runs_of(const std::vector<int64_t>& counts) const;
  void count_in(const std::vector<int64_t>& counts);

  LlamaConfig config_;
  int64_t capacity_;
  std::vector<int64_t> lengths_;
  std::vector<std::pair<Tensor, Tensor>> layers_;
};

// Bytes that a KvCache takes, from a config alone.
size_t estimate_kv_cache_memory(const LlamaConfig& config, int64_t batch, int64_t capacity, DType dtype);

}  // namespace wick
