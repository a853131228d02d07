// The contract's second tier made of calls of its first. Devices derive from it and override the compositions
// that they can beat; the tests hold each override and its composition against the same references.
#pragma once

#include "wick/backend/backend.h"

namespace wick {

class ComposedBackend : public Backend {
 public:
  void affine(View y, View x, float scale, float shift) override;
  void accumulate(View y, View x, float scale) override;
  void gated_linear(View y, View x, View w, View bias, const LoraFactors& lora) override;
  void lora_linear(const LoraArgs& a) override;
  void lora_linear_backward(const LoraArgs& a, const LoraGradients& g) override;
  void lora_backward(const LoraArgs& a, const LoraGradients& g) override;
  void upsample_nearest(View y, View x) override;
  void upsample_nearest_backward(View dx, View dy) override;
  void softmax(View y, View x) override;
  void softmax_backward(View dx, View dy, View y) override;
  void geglu(View y, View x) override;
  void geglu_backward(View dx, View dy, View x) override;
  void swiglu(View y, View x) override;
  void swiglu_backward(View dx, View dy, View x) override;
  void gated_add(View y, View x, View gate, View h) override;
  void gated_add_norm(const GatedSum& sum, const NormArgs& norm) override;
  void gated_add_backward(View dh, View dgate, View dy, View gate, View h) override;
  void qk_norm_rope(const QkNormRopeArgs& a) override;
  void qk_norm_rope_backward(const QkNormRopeArgs& a, const QkNormRopeGradients& g) override;
  void rope_into_cache(const RopeIntoCacheArgs& a) override;
  void copy_many(const std::vector<Copied>& all, bool add) override;
  void mse(View loss, View a, View b) override;
  void mse_backward(View da, View dloss, View a, View b) override;
};

// A 1x1 convolution is a linear layer over pixels.
inline bool is_linear(const View& w, const Conv2d& c) {
  return w.shape[1] == 1 && w.shape[2] == 1 && c.stride == 1 && !c.top && !c.left && !c.bottom && !c.right;
}
inline View linear_weight(const View& w) {
  return {w.data, w.dtype, {w.shape[0], w.shape[3]}, {w.stride[0], w.stride[3]}};
}

// A gate [B, D] beside all rows of h [B, ..., D].
inline View beside_rows(View gate, const Shape& h) {
  const int64_t batch = gate.stride[0], last = gate.stride[1];
  gate.shape = h;
  gate.stride = h;
  for (int d = 0; d < h.rank(); ++d) gate.stride[d] = d == 0 ? batch : d + 1 == h.rank() ? last : 0;
  return gate;
}

}  // namespace wick
