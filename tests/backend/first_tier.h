// A backend of a device's first tier alone, with compositions for the second: what a new device has on its first day.
#pragma once

#include "wick/backend/composed.h"

namespace wick::probe {

class FirstTier : public ComposedBackend {
 public:
  explicit FirstTier(Backend& of) : of_(of) {}

  std::string_view name() const override { return of_.name(); }
  Memory& memory() override { return of_.memory(); }
  void allow_tf32(bool allow) override { of_.allow_tf32(allow); }

  void copy(View y, View x) override { of_.copy(y, x); }
  void fill(View y, float value) override { of_.fill(y, value); }
  void fill_uniform(View y, uint64_t seed, uint32_t stream, uint64_t position) override {
    of_.fill_uniform(y, seed, stream, position);
  }
  void fill_normal(View y, uint64_t seed, uint32_t stream, uint64_t position) override {
    of_.fill_normal(y, seed, stream, position);
  }
  void unary(Unary op, View y, View x) override { of_.unary(op, y, x); }
  void unary_backward(Unary op, View dx, View dy, View x) override { of_.unary_backward(op, dx, dy, x); }
  void binary(Binary op, View y, View a, View b) override { of_.binary(op, y, a, b); }
  void clamp(View y, View x, float min, float max) override { of_.clamp(y, x, min, max); }
  void clamp_backward(View dx, View dy, View x, float min, float max) override {
    of_.clamp_backward(dx, dy, x, min, max);
  }
  void sum(View y, View x) override { of_.sum(y, x); }
  void sum_of_squares(View total, const std::vector<View>& tensors) override { of_.sum_of_squares(total, tensors); }
  void argmax(View ids, View largest, View x) override { of_.argmax(ids, largest, x); }
  void matmul(View c, View a, View b, float alpha, float beta) override { of_.matmul(c, a, b, alpha, beta); }
  void linear(View y, View x, View w, View bias, View residual) override { of_.linear(y, x, w, bias, residual); }
  void dropout(View y, View x, const Dropout& dropout, bool add) override { of_.dropout(y, x, dropout, add); }
  void conv2d(View y, View x, View w, View bias, View added, Conv2d conv) override {
    of_.conv2d(y, x, w, bias, added, conv);
  }
  void conv2d_backward_input(View dx, View dy, View w, Conv2d conv) override {
    of_.conv2d_backward_input(dx, dy, w, conv);
  }
  void conv2d_backward_weight(View dw, View dbias, View dy, View x, Conv2d conv) override {
    of_.conv2d_backward_weight(dw, dbias, dy, x, conv);
  }
  void group_norm(const GroupNormArgs& a) override { of_.group_norm(a); }
  void group_norm_backward(const GroupNormArgs& a, const NormGradients& g) override { of_.group_norm_backward(a, g); }
  void layer_norm(const NormArgs& a) override { of_.layer_norm(a); }
  void layer_norm_backward(const NormArgs& a, const NormGradients& g) override { of_.layer_norm_backward(a, g); }
  void rms_norm(const NormArgs& a) override { of_.rms_norm(a); }
  void rms_norm_backward(const NormArgs& a, const NormGradients& g) override { of_.rms_norm_backward(a, g); }
  void attention(const AttentionArgs& a) override { of_.attention(a); }
  void attention_backward(const AttentionArgs& a, const AttentionGradients& g) override {
    of_.attention_backward(a, g);
  }
  void rope(View y, View x, View cos, View sin, RopePairs pairs, bool inverse) override {
    of_.rope(y, x, cos, sin, pairs, inverse);
  }
  void rope_angles(View cos, View sin, View positions, View frequencies) override {
    of_.rope_angles(cos, sin, positions, frequencies);
  }
  void timestep_embedding(View y, View t, float max_period) override { of_.timestep_embedding(y, t, max_period); }
  void embedding(View y, View table, View ids) override { of_.embedding(y, table, ids); }
  void embedding_backward(View dtable, View dy, View ids) override { of_.embedding_backward(dtable, dy, ids); }
  void scatter_rows(View y, View x, View rows) override { of_.scatter_rows(y, x, rows); }
  void cross_entropy(View loss, View dlogits, View logits, View targets) override {
    of_.cross_entropy(loss, dlogits, logits, targets);
  }
  void optimizer_step(const std::vector<OptimizerSlot>& slots, const OptimizerStep& step, View scalars) override {
    of_.optimizer_step(slots, step, scalars);
  }

 private:
  Backend& of_;
};

}  // namespace wick::probe
