// A backend for tests that takes views of host memory and computes on a device: every call uploads the spans of its
// views, runs there and downloads all of them again. So the same rows test every backend, and the gaps between the
// elements of a strided output are compared too.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "backend/reached.h"
#include "wick/backend/backend.h"

namespace wick::probe {

// Each method of the contract is pure for it, so that it cannot inherit a composition in place of the device's kernel.
class Mirror final : public Backend {
 public:
  explicit Mirror(Backend& device) : device_(device) {}

  std::string_view name() const override { return device_.name(); }
  void allow_tf32(bool allow) override { device_.allow_tf32(allow); }
  Memory& memory() override { return host_memory(); }

  void copy(View y, View x) override { run<&Backend::copy>(y, x); }
  void fill(View y, float value) override { run<&Backend::fill>(y, value); }
  void fill_uniform(View y, uint64_t seed, uint32_t stream, uint64_t position) override {
    run<&Backend::fill_uniform>(y, seed, stream, position);
  }
  void fill_normal(View y, uint64_t seed, uint32_t stream, uint64_t position) override {
    run<&Backend::fill_normal>(y, seed, stream, position);
  }
  void unary(Unary op, View y, View x) override { run<&Backend::unary>(op, y, x); }
  void unary_backward(Unary op, View dx, View dy, View x) override { run<&Backend::unary_backward>(op, dx, dy, x); }
  void binary(Binary op, View y, View a, View b) override { run<&Backend::binary>(op, y, a, b); }
  void affine(View y, View x, float scale, float shift) override { run<&Backend::affine>(y, x, scale, shift); }
  void clamp(View y, View x, float min, float max) override { run<&Backend::clamp>(y, x, min, max); }
  void clamp_backward(View dx, View dy, View x, float min, float max) override {
    run<&Backend::clamp_backward>(dx, dy, x, min, max);
  }
  void accumulate(View y, View x, float scale) override { run<&Backend::accumulate>(y, x, scale); }
  void sum(View y, View x) override { run<&Backend::sum>(y, x); }
  void matmul(View c, View a, View b, float alpha, float beta) override { run<&Backend::matmul>(c, a, b, alpha, beta); }
  void linear(View y, View x, View w, View bias, View residual) override {
    run<&Backend::linear>(y, x, w, bias, residual);
  }
  void gated_linear(View y, View x, View w, View bias, const LoraFactors& lora) override {
    run<&Backend::gated_linear>(y, x, w, bias, lora);
  }
  void lora_linear(const LoraArgs& a) override { run<&Backend::lora_linear>(a); }
  void lora_linear_backward(const LoraArgs& a, const LoraGradients& g) override {
    run<&Backend::lora_linear_backward>(a, g);
  }
  void lora_backward(const LoraArgs& a, const LoraGradients& g) override { run<&Backend::lora_backward>(a, g); }
  void dropout(View y, View x, const Dropout& dropout, bool add) override {
    run<&Backend::dropout>(y, x, dropout, add);
  }
  void conv2d(View y, View x, View w, View bias, View added, Conv2d conv) override {
    run<&Backend::conv2d>(y, x, w, bias, added, conv);
  }
  void conv2d_backward_input(View dx, View dy, View w, Conv2d conv) override {
    run<&Backend::conv2d_backward_input>(dx, dy, w, conv);
  }
  void conv2d_backward_weight(View dw, View dbias, View dy, View x, Conv2d conv) override {
    run<&Backend::conv2d_backward_weight>(dw, dbias, dy, x, conv);
  }
  void upsample_nearest(View y, View x) override { run<&Backend::upsample_nearest>(y, x); }
  void upsample_nearest_backward(View dx, View dy) override { run<&Backend::upsample_nearest_backward>(dx, dy); }
  void group_norm(const GroupNormArgs& a) override { run<&Backend::group_norm>(a); }
  void group_norm_backward(const GroupNormArgs& a, const NormGradients& g) override {
    run<&Backend::group_norm_backward>(a, g);
  }
  void layer_norm(const NormArgs& a) override { run<&Backend::layer_norm>(a); }
  void layer_norm_backward(const NormArgs& a, const NormGradients& g) override {
    run<&Backend::layer_norm_backward>(a, g);
  }
  void rms_norm(const NormArgs& a) override { run<&Backend::rms_norm>(a); }
  void rms_norm_backward(const NormArgs& a, const NormGradients& g) override { run<&Backend::rms_norm_backward>(a, g); }
  void attention(const AttentionArgs& a) override { run<&Backend::attention>(a); }
  void attention_backward(const AttentionArgs& a, const AttentionGradients& g) override {
    run<&Backend::attention_backward>(a, g);
  }
  void softmax(View y, View x) override { run<&Backend::softmax>(y, x); }
  void softmax_backward(View dx, View dy, View y) override { run<&Backend::softmax_backward>(dx, dy, y); }
  void rope(View y, View x, View cos, View sin, RopePairs pairs, bool inverse) override {
    run<&Backend::rope>(y, x, cos, sin, pairs, inverse);
  }
  void rope_angles(View cos, View sin, View positions, View frequencies) override {
    run<&Backend::rope_angles>(cos, sin, positions, frequencies);
  }
  void geglu(View y, View x) override { run<&Backend::geglu>(y, x); }
  void geglu_backward(View dx, View dy, View x) override { run<&Backend::geglu_backward>(dx, dy, x); }
  void swiglu(View y, View x) override { run<&Backend::swiglu>(y, x); }
  void swiglu_backward(View dx, View dy, View x) override { run<&Backend::swiglu_backward>(dx, dy, x); }
  void embedding(View y, View table, View ids) override { run<&Backend::embedding>(y, table, ids); }
  void embedding_backward(View dtable, View dy, View ids) override {
    run<&Backend::embedding_backward>(dtable, dy, ids);
  }
  void timestep_embedding(View y, View t, float max_period) override {
    run<&Backend::timestep_embedding>(y, t, max_period);
  }
  void scatter_rows(View y, View x, View rows) override { run<&Backend::scatter_rows>(y, x, rows); }
  void gated_add(View y, View x, View gate, View h) override { run<&Backend::gated_add>(y, x, gate, h); }
  void gated_add_norm(const GatedSum& sum, const NormArgs& norm) override { run<&Backend::gated_add_norm>(sum, norm); }
  void gated_add_backward(View dh, View dgate, View dy, View gate, View h) override {
    run<&Backend::gated_add_backward>(dh, dgate, dy, gate, h);
  }
  void qk_norm_rope(const QkNormRopeArgs& a) override { run<&Backend::qk_norm_rope>(a); }
  void qk_norm_rope_backward(const QkNormRopeArgs& a, const QkNormRopeGradients& g) override {
    run<&Backend::qk_norm_rope_backward>(a, g);
  }
  void rope_into_cache(const RopeIntoCacheArgs& a) override { run<&Backend::rope_into_cache>(a); }
  void cross_entropy(View loss, View dlogits, View logits, View targets) override {
    run<&Backend::cross_entropy>(loss, dlogits, logits, targets);
  }
  void copy_many(const std::vector<Copied>& all, bool add) override { run<&Backend::copy_many>(all, add); }
  void mse(View loss, View a, View b) override { run<&Backend::mse>(loss, a, b); }
  void mse_backward(View da, View dloss, View a, View b) override { run<&Backend::mse_backward>(da, dloss, a, b); }
  void optimizer_step(const std::vector<OptimizerSlot>& slots, const OptimizerStep& step, View scalars) override {
    run<&Backend::optimizer_step>(slots, step, scalars);
  }
  void sum_of_squares(View total, const std::vector<View>& tensors) override {
    run<&Backend::sum_of_squares>(total, tensors);
  }
  void argmax(View ids, View largest, View x) override { run<&Backend::argmax>(ids, largest, x); }

 private:
  // A range of host bytes that one call's views share, and its copy on the device.
  struct Region {
    char *begin, *end;
    Tensor twin;
  };

  template <auto method, class... A>
  void run(A... arguments) {
    Reached<method>::called = true;
    std::vector<Region> regions;
    each_of([&](const View& v) { collect(regions, v); }, arguments...);
    merge(regions);
    for (Region& r : regions) {
      r.twin = Tensor::empty({r.end - r.begin}, DType::u8, device_.memory());
      device_.memory().write(r.twin.view().data, r.begin, size_t(r.end - r.begin));
    }
    each_of([&](View& v) { move(regions, v); }, arguments...);
    (device_.*method)(arguments...);
    for (const Region& r : regions) device_.memory().read(r.begin, r.twin.view().data, size_t(r.end - r.begin));
  }

  // Calls f for every view among arguments.
  template <class F, class... Arguments>
  static void each_of(F f, Arguments&... arguments) {
    (each(f, arguments), ...);
  }
  template <class F, class T>
  requires std::is_scalar_v<T>
  static void each(F, T&) {}
  template <class F>
  static void each(F, Conv2d&) {}
  template <class F>
  static void each(F, OptimizerStep&) {}
  template <class F>
  static void each(F f, View& v) {
    f(v);
  }
  template <class F, class T>
  static void each(F f, std::vector<T>& all) {
    for (T& one : all) each(f, one);
  }
  template <class F>
  static void each(F f, OptimizerSlot& s) {
    each_of(f, s.param, s.grad, s.states, s.average, s.copy);
  }
  template <class F>
  static void each(F f, Modulation& m) {
    each_of(f, m.scale, m.shift);
  }
  template <class F>
  static void each(F f, GroupNormArgs& a) {
    each_of(f, a.y, a.mean, a.rstd, a.x, a.w, a.b);
  }
  template <class F>
  static void each(F f, NormArgs& a) {
    each_of(f, a.y, a.mean, a.rstd, a.x, a.w, a.b, a.m);
  }
  template <class F>
  static void each(F f, GatedSum& s) {
    each_of(f, s.x, s.gate, s.h);
  }
  template <class F>
  static void each(F f, NormGradients& g) {
    each_of(f, g.dx, g.dw, g.db, g.dm, g.dy, g.residual);
  }
  template <class F>
  static void each(F f, AttentionArgs& a) {
    each_of(f, a.y, a.lse, a.q, a.k, a.v, a.ranges);
  }
  template <class F>
  static void each(F f, AttentionGradients& g) {
    each_of(f, g.dq, g.dk, g.dv, g.dy);
  }
  template <class F>
  static void each(F f, Copied& c) {
    each_of(f, c.y, c.x);
  }
  template <class F>
  static void each(F f, Dropout& d) {
    f(d.draw);
  }
  template <class F>
  static void each(F f, LoraBlock& b) {
    f(b.up);
  }
  template <class F>
  static void each(F f, LoraFactors& lora) {
    each_of(f, lora.down, lora.blocks, lora.dropout);
  }
  template <class F>
  static void each(F f, LoraArgs& a) {
    each_of(f, a.y, a.s, a.x, a.w, a.bias, a.lora, a.residual);
  }
  template <class F>
  static void each(F f, LoraGradients& g) {
    each_of(f, g.dx, g.ddown, g.dups, g.dy);
  }
  template <class F>
  static void each(F f, RopeIntoCacheArgs& a) {
    each_of(f, a.turned, a.keys, a.values, a.q, a.k, a.v, a.cos, a.sin, a.rows);
  }

  template <class F>
  static void each(F f, QkNormRopeArgs& a) {
    each_of(f, a.y, a.x, a.q_norm, a.k_norm, a.cos, a.sin);
  }
  template <class F>
  static void each(F f, QkNormRopeGradients& g) {
    each_of(f, g.dx, g.dq_norm, g.dk_norm, g.dy);
  }

  static void collect(std::vector<Region>& regions, const View& v) {
    if (!v || v.numel() == 0) return;
    int64_t last = 0;
    for (int d = 0; d < v.rank(); ++d) last += (v.shape[d] - 1) * v.stride[d];
    const int64_t bytes =
        has_row_format(v.dtype) ? byte_offset(v, v.shape[0] * v.stride[0]) : bytes_of(v.dtype, last + 1);
    regions.push_back({v.as<char>(), v.as<char>() + bytes, {}});
  }

  static void merge(std::vector<Region>& regions) {
    std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
    std::vector<Region> merged;
    for (const Region& r : regions) {
      if (!merged.empty() && r.begin < merged.back().end)
        merged.back().end = std::max(merged.back().end, r.end);
      else
        merged.push_back(r);
    }
    regions = merged;
  }

  static void move(const std::vector<Region>& regions, View& v) {
    for (const Region& r : regions)
      if (r.begin <= v.as<char>() && v.as<char>() < r.end) {
        v.data = r.twin.view().as<char>() + (v.as<char>() - r.begin);
        break;
      }
  }

  Backend& device_;
};

}  // namespace wick::probe
