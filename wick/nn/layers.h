// Layers: each takes a Scope and its sizes, loads its weights, and is called like a function.
#pragma once

#include "wick/nn/scope.h"
#include "wick/ops/ops.h"

namespace wick {

// y [..., out] = x [..., in] W^T + b + residual [..., out], plus what the Scope's adapter has for it. One Linear
// serves frozen and trainable weights.
class Linear {
 public:
  struct Output {  // of one of several linears
    std::string name;
    int64_t width;
  };

  Linear(const Scope& s, int64_t in, int64_t out, bool bias = true);
  Linear(Tensor weight, Tensor bias, AdapterOfLayer adapter = nullptr);  // without a checkpoint
  // A 1x1 convolution: on channels-last images it is a linear, and only files know the difference.
  static Linear pointwise(const Scope& s, int64_t in, int64_t out);
  // One linear for those of these names, which have the same input, with their outputs side by side. (Where their
  // weights are kept in different types, as in some GGUF files, or adapters do not stack, it is several in one.)
  static Linear side_by_side(const Scope& s, int64_t in, const std::vector<Output>& outputs, bool bias = true);
  Tensor operator()(const Tensor& x, const Tensor& residual = {}) const { return apply(x, residual, false); }
  // The same as the end of a block under checkpoint(): its output is not computed when the block runs again.
  Tensor last(const Tensor& x, const Tensor& residual) const { return apply(x, residual, /*ends_block=*/true); }
  bool is_adapted() const { return adapter_ != nullptr; }
  // SwiGLU of its output: one operation where no gradients are wanted.
  Tensor gated(const Tensor& x) const;

 private:
  Tensor apply(const Tensor& x, const Tensor& residual, bool ends_block) const;
  Linear(const Scope& s, const LoraTarget& target, bool bias);
  Linear(const Scope& s, int64_t in, const std::vector<Output>& outputs, bool bias);
  Linear(StackedTensor weight, StackedTensor bias, AdapterOfLayer adapter);
  StackedTensor weight_, bias_;
  AdapterOfLayer adapter_;
  std::vector<Linear> parts_;  // instead of the above, where they do not stack
};

class Conv {  // 3x3 and wider
 public:
  Conv(const Scope& s, int64_t in, int64_t out, int kernel, Conv2d conv);
  // x [B, H, W, in] -> y [B, H', W', out], plus what is `added`, which may broadcast to y.
  Tensor operator()(const Tensor& x, const Tensor& added = {}) const;

 private:
  Tensor weight_, bias_;
  Conv2d conv_;
  AdapterOfLayer adapter_;
};

inline Conv2d same_padding(int kernel) {
  const int p = kernel / 2;
  return {.stride = 1, .top = p, .left = p, .bottom = p, .right = p};
}

struct GroupNorm {
  Tensor weight, bias;
  int groups;
  float eps;
  GroupNorm(const Scope& s, int64_t channels, int groups, float eps);
  Tensor operator()(const Tensor& x) const { return group_norm(x, weight, bias, groups, eps); }
  Tensor silu(const Tensor& x) const { return group_norm(x, weight, bias, groups, eps, true); }
};

struct LayerNorm {
  Tensor weight, bias;
  float eps;
  LayerNorm(const Scope& s, int64_t dim, float eps = 1e-5f);
  Tensor operator()(const Tensor& x) const { return layer_norm(x, weight, bias, eps); }
};

struct RmsNorm {
  Tensor weight;
  float eps;
  RmsNorm(const Scope& s, int64_t dim, float eps);
  Tensor operator()(const Tensor& x) const { return rms_norm(x, weight, eps); }
};

struct Embedding {
  Tensor table;
  DType activations;
  AdapterOfLayer adapter = {};
  Tensor added = {};  // rows [n, dim] of `activations`, whose ids follow the table's
  Embedding(const Scope& s, int64_t count, int64_t dim);
  // The words that the adapter teaches this encoder ("clip_l"): `added`.
  void add_words(const Scope& s, const std::string& encoder);
  int64_t ids() const { return table.dim(0) + (added ? added.dim(0) : 0); }  // all are below this
  Tensor operator()(const Tensor& ids) const;                                // ids i64 on the host
};

// `count` blocks of the model at s/0, s/1, …
template <class Block, class... Args>
std::vector<Block> layers(const Scope& s, int count, const Args&... args) {
  std::vector<Block> blocks;
  blocks.reserve(size_t(count));
  for (int i = 0; i < count; ++i) blocks.push_back(Block{(s / i).next_block(), args...});
  return blocks;
}

}  // namespace wick
