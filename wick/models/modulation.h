// Parts that transformers of rectified flows share: the vector that conditions all blocks, and what they make of it
// (adaptive layer norm with gates; Peebles and Xie, "Scalable diffusion models with transformers", 2023).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "wick/autograd/block_schedule.h"
#include "wick/nn/layers.h"

namespace wick {

inline constexpr int64_t kTimeFeatures = 256;  // sinusoids of a time

struct FlowTransformerOptions {
  BlockSchedule block_schedule = {};
  bool modulations_ahead = false;  // their weights lie on the host (Modulations)
};

struct VectorMlp {  // [B, in] -> [B, dim]
  Scope s;
  std::string first, second;  // names of its two linears
  int64_t in, dim;
  Linear in_layer{s / first, in, dim};
  Linear out_layer{s / second, dim, dim};

  Tensor operator()(const Tensor& x) const { return out_layer(silu(in_layer(x))); }
  bool is_adapted() const { return in_layer.is_adapted() || out_layer.is_adapted(); }
};

// The conditioning of all blocks in one step.
struct Conditioning {
  Tensor vector;      // [B, D], after the silu with which every modulation begins
  Tensor ahead = {};  // [B, width] of Modulations, where they are computed ahead
};

// The modulations of all blocks, a quarter to a third of a model's weights. They depend on the vector alone, so that
// they can be computed for many steps at once: their weights lie on the host then, and visit the device one after the
// other. An adapter on them belongs to the steps.
class Modulations {
 public:
  explicit Modulations(bool ahead) : ahead_(ahead) {}

  bool are_ahead() const { return ahead_; }
  int64_t width() const { return width_; }
  // Vectors [R, D] -> [R, width] on the host, in the vectors' dtype; without values in an outline.
  Tensor operator()(const Tensor& vectors) const;
  // The conditioning of a step by its vector [B, D] and the rows made ahead of it; by rows made here where there are
  // none.
  Conditioning of_step(const Tensor& vector, const Tensor& ahead) const;

 private:
  friend class ModulationRows;
  struct Frozen {
    Shape shape;
    DType dtype;
    Tensor weight;  // on the host; empty in an outline
    Tensor bias;
    int64_t first;  // column of its first output
  };

  bool ahead_;
  int64_t width_ = 0;
  std::vector<Frozen> all_;
};

// `count` rows [B, dim] for a block.
class ModulationRows {
 public:
  ModulationRows(const Scope& s, int64_t dim, int64_t count, Modulations& all);
  std::vector<Tensor> operator()(const Conditioning& c) const;

 private:
  int64_t dim_, count_;
  std::optional<Linear> resident_;
  AdapterOfLayer adapter_;
  int64_t first_ = 0;
};

inline constexpr float kNormEps = 1e-6f;

// A layer norm without weights, then times 1 + scale and plus shift.
inline Tensor modulated_norm(const Tensor& x, const Tensor& shift, const Tensor& scale) {
  return layer_norm(x, {}, {}, kNormEps, {.scale = scale, .shift = shift});
}

// A gated sum, which ends one half of a block, and its modulated norm, which begins the next.
inline NormedSum modulated_norm_of_sum(const Tensor& x, const Tensor& gate, const Tensor& h, const Tensor& shift,
                                       const Tensor& scale) {
  return gated_add_norm(x, gate, h, kNormEps, {.scale = scale, .shift = shift});
}

// The linear whose output, times the gate, ends a block: only the gate's gradient reads it when the block runs again.
inline Tensor gated_last(const Linear& linear, const Tensor& x, const Tensor& gate) {
  return gate.tracked() ? linear(x) : linear.last(x, {});
}

// To the range of f16, as diffusers clips activations that overflow in it.
inline Tensor clipped(const Tensor& x) {
  constexpr float kLargestHalf = 65504;  // of f16
  return clamp(x, -kLargestHalf, kLargestHalf);
}

}  // namespace wick
