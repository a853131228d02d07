// Parts that transformers of rectified flows share: the vector that conditions all blocks, and what they make of it
// (adaptive layer norm with gates; Peebles and Xie, "Scalable diffusion models with transformers", 2023).
#pragma once

#include <string>
#include <vector>

#include "wick/nn/layers.h"

namespace wick {

inline constexpr int64_t kTimeFeatures = 256;  // sinusoids of a time
inline constexpr float kLargestHalf = 65504;   // of f16

struct VectorMlp {  // [B, in] -> [B, dim]
  Scope s;
  std::string first, second;  // names of its two linears
  int64_t in, dim;
  Linear in_layer{s / first, in, dim};
  Linear out_layer{s / second, dim, dim};

  Tensor operator()(const Tensor& x) const { return out_layer(silu(in_layer(x))); }
};

// `count` rows [B, dim] for a block, of the vector [B, dim] after its silu.
struct ModulationRows {
  Scope s;
  int64_t dim, count;
  Linear lin{s, dim, count* dim};

  std::vector<Tensor> operator()(const Tensor& vector) const {
    return split(lin(vector), 1, std::vector<int64_t>(size_t(count), dim));
  }
};

// A layer norm without weights, then times 1 + scale and plus shift.
inline Tensor modulated_norm(const Tensor& x, const Tensor& shift, const Tensor& scale) {
  constexpr float kEps = 1e-6f;
  return layer_norm(x, {}, {}, kEps, {.scale = scale, .shift = shift});
}

// The linear whose output, times the gate, ends a block: only the gate's gradient reads it when the block runs again.
inline Tensor gated_last(const Linear& linear, const Tensor& x, const Tensor& gate) {
  return gate.tracked() ? linear(x) : linear.last(x, {});
}

inline Tensor clipped(const Tensor& x) { return clamp(x, -kLargestHalf, kLargestHalf); }

}  // namespace wick
