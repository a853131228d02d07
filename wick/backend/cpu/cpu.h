// The CPU backend: f32 activations, one thread pool (OpenMP) for oneDNN and for us. One file an op family;
// backend.h documents the methods.
#pragma once

#include "wick/backend/composed.h"

namespace wick {

class CpuBackend final : public ComposedBackend {
 public:
  std::string_view name() const override { return "cpu"; }
  Memory& memory() override { return host_memory(); }
  DType computes_in(DType) const override { return DType::f32; }

  // moving and making data
  void copy(View y, View x) override;
  void fill(View y, float value) override;
  void fill_uniform(View y, uint64_t seed, uint32_t stream, uint64_t position) override;
  void fill_normal(View y, uint64_t seed, uint32_t stream, uint64_t position) override;

  // elementwise and reductions
  void unary(Unary op, View y, View x) override;
  void unary_backward(Unary op, View dx, View dy, View x) override;
  void binary(Binary op, View y, View a, View b) override;
  void affine(View y, View x, float scale, float shift) override;
  void clamp(View y, View x, float min, float max) override;
  void clamp_backward(View dx, View dy, View x, float min, float max) override;
  void accumulate(View y, View x, float scale) override;
  void sum(View y, View x) override;
  void argmax(View ids, View largest, View x) override;

  // matrix products
  void matmul(View c, View a, View b, float alpha, float beta) override;
  void linear(View y, View x, View w, View bias, View residual) override;
  void lora_linear(const LoraArgs& a) override;
  void lora_linear_backward(const LoraArgs& a, const LoraGradients& g) override;
  void lora_backward(const LoraArgs& a, const LoraGradients& g) override;
  void dropout(View y, View x, const Dropout& dropout, bool add) override;

  // convolution
  void conv2d(View y, View x, View w, View bias, View added, Conv2d conv) override;
  void conv2d_backward_input(View dx, View dy, View w, Conv2d conv) override;
  void conv2d_backward_weight(View dw, View dbias, View dy, View x, Conv2d conv) override;
  void upsample_nearest_backward(View dx, View dy) override;

  // norms
  void group_norm(const GroupNormArgs& a) override;
  void group_norm_backward(const GroupNormArgs& a, const NormGradients& g) override;
  void layer_norm(const NormArgs& a) override;
  void layer_norm_backward(const NormArgs& a, const NormGradients& g) override;
  void rms_norm(const NormArgs& a) override;
  void rms_norm_backward(const NormArgs& a, const NormGradients& g) override;

  // attention, softmax
  void attention(const AttentionArgs& a) override;
  void attention_backward(const AttentionArgs& a, const AttentionGradients& g) override;
  void softmax(View y, View x) override;
  void softmax_backward(View dx, View dy, View y) override;

  // rotary positions
  void rope(View y, View x, View cos, View sin, RopePairs pairs, bool inverse) override;
  void rope_angles(View cos, View sin, View positions, View frequencies) override;

  // gated activations
  void geglu(View y, View x) override;
  void geglu_backward(View dx, View dy, View x) override;
  void swiglu(View y, View x) override;
  void swiglu_backward(View dx, View dy, View x) override;

  // tables of embeddings
  void embedding(View y, View table, View ids) override;
  void embedding_backward(View dtable, View dy, View ids) override;
  void timestep_embedding(View y, View t, float max_period) override;
  void scatter_rows(View y, View x, View rows) override;

  // losses
  void cross_entropy(View loss, View dlogits, View logits, View targets) override;
  void mse(View loss, View a, View b) override;
  void mse_backward(View da, View dloss, View a, View b) override;

  // optimizer
  void optimizer_step(const std::vector<OptimizerSlot>& slots, const OptimizerStep& step, View scalars) override;
  void sum_of_squares(View total, const std::vector<View>& tensors) override;
};

}  // namespace wick
