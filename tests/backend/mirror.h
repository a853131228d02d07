// A backend for tests that takes views of host memory and computes on a device: every call uploads what its views
// span, runs there and downloads all of it again. So the same rows test every backend, and what lies between the
// elements of a strided output is compared too.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "wick/backend/backend.h"

namespace wick::probe {

class Mirror final : public Backend {
 public:
  explicit Mirror(Backend& device) : device_(device) {}

  std::string_view name() const override { return device_.name(); }
  void allow_tf32(bool allow) override { device_.allow_tf32(allow); }
  Memory& memory() override { return host_memory(); }

  void copy(View y, View x) override { run(&Backend::copy, y, x); }
  void fill(View y, float value) override { run(&Backend::fill, y, value); }
  void fill_uniform(View y, uint64_t seed, uint32_t stream, uint64_t position) override {
    run(&Backend::fill_uniform, y, seed, stream, position);
  }
  void fill_normal(View y, uint64_t seed, uint32_t stream, uint64_t position) override {
    run(&Backend::fill_normal, y, seed, stream, position);
  }
  void unary(Unary op, View y, View x) override { run(&Backend::unary, op, y, x); }
  void unary_backward(Unary op, View dx, View dy, View x) override { run(&Backend::unary_backward, op, dx, dy, x); }
  void binary(Binary op, View y, View a, View b) override { run(&Backend::binary, op, y, a, b); }
  void affine(View y, View x, float scale, float shift) override { run(&Backend::affine, y, x, scale, shift); }
  void clamp(View y, View x, float min, float max) override { run(&Backend::clamp, y, x, min, max); }
  void clamp_backward(View dx, View dy, View x, float min, float max) override {
    run(&Backend::clamp_backward, dx, dy, x, min, max);
  }
  void accumulate(View y, View x, float scale) override { run(&Backend::accumulate, y, x, scale); }
  void sum(View y, View x) override { run(&Backend::sum, y, x); }
  void matmul(View c, View a, View b, float alpha, float beta) override { run(&Backend::matmul, c, a, b, alpha, beta); }
  void linear(View y, View x, View w, View bias, View residual) override {
    run(&Backend::linear, y, x, w, bias, residual);
  }
  void gated_linear(View y, View x, View w, View bias) override { run(&Backend::gated_linear, y, x, w, bias); }
  void lora_linear(View y, View s, View x, View w, View bias, const LoraFactors& lora, View residual) override {
    run(&Backend::lora_linear, y, s, x, w, bias, lora, residual);
  }
  void lora_linear_backward(View dx, View ddown, const std::vector<View>& dups, View dy, View x, View s, View w,
                            const LoraFactors& lora) override {
    run(&Backend::lora_linear_backward, dx, ddown, dups, dy, x, s, w, lora);
  }
  void lora_backward(View ddown, const std::vector<View>& dups, View dy, View x, const LoraFactors& lora) override {
    run(&Backend::lora_backward, ddown, dups, dy, x, lora);
  }
  void dropout(View y, View x, const Dropout& dropout, bool add) override {
    run(&Backend::dropout, y, x, dropout, add);
  }
  void conv2d(View y, View x, View w, View bias, Conv2d conv) override { run(&Backend::conv2d, y, x, w, bias, conv); }
  void conv2d_backward_input(View dx, View dy, View w, Conv2d conv) override {
    run(&Backend::conv2d_backward_input, dx, dy, w, conv);
  }
  void conv2d_backward_weight(View dw, View dbias, View dy, View x, Conv2d conv) override {
    run(&Backend::conv2d_backward_weight, dw, dbias, dy, x, conv);
  }
  void upsample_nearest(View y, View x) override { run(&Backend::upsample_nearest, y, x); }
  void upsample_nearest_backward(View dx, View dy) override { run(&Backend::upsample_nearest_backward, dx, dy); }
  void group_norm(View y, View mean, View rstd, View x, View w, View b, int groups, float eps, bool silu) override {
    run(&Backend::group_norm, y, mean, rstd, x, w, b, groups, eps, silu);
  }
  void group_norm_backward(View dx, View dw, View db, View dy, View x, View w, View b, View mean, View rstd, int groups,
                           bool silu) override {
    run(&Backend::group_norm_backward, dx, dw, db, dy, x, w, b, mean, rstd, groups, silu);
  }
  void layer_norm(View y, View mean, View rstd, View x, View w, View b, Modulation m, float eps) override {
    run(&Backend::layer_norm, y, mean, rstd, x, w, b, m, eps);
  }
  void layer_norm_backward(View dx, View dw, View db, Modulation dm, View dy, View x, View w, View b, Modulation m,
                           View mean, View rstd, View residual) override {
    run(&Backend::layer_norm_backward, dx, dw, db, dm, dy, x, w, b, m, mean, rstd, residual);
  }
  void rms_norm(View y, View rstd, View x, View w, Modulation m, float eps) override {
    run(&Backend::rms_norm, y, rstd, x, w, m, eps);
  }
  void rms_norm_backward(View dx, View dw, Modulation dm, View dy, View x, View w, Modulation m, View rstd,
                         View residual) override {
    run(&Backend::rms_norm_backward, dx, dw, dm, dy, x, w, m, rstd, residual);
  }
  void attention(View y, View lse, View q, View k, View v, float scale, bool causal, View ranges) override {
    run(&Backend::attention, y, lse, q, k, v, scale, causal, ranges);
  }
  void attention_backward(View dq, View dk, View dv, View dy, View y, View lse, View q, View k, View v, float scale,
                          bool causal, View ranges) override {
    run(&Backend::attention_backward, dq, dk, dv, dy, y, lse, q, k, v, scale, causal, ranges);
  }
  void softmax(View y, View x) override { run(&Backend::softmax, y, x); }
  void softmax_backward(View dx, View dy, View y) override { run(&Backend::softmax_backward, dx, dy, y); }
  void rope(View y, View x, View cos, View sin, RopePairs pairs, bool inverse) override {
    run(&Backend::rope, y, x, cos, sin, pairs, inverse);
  }
  void rope_angles(View cos, View sin, View positions, View frequencies) override {
    run(&Backend::rope_angles, cos, sin, positions, frequencies);
  }
  void geglu(View y, View x) override { run(&Backend::geglu, y, x); }
  void geglu_backward(View dx, View dy, View x) override { run(&Backend::geglu_backward, dx, dy, x); }
  void swiglu(View y, View x) override { run(&Backend::swiglu, y, x); }
  void swiglu_backward(View dx, View dy, View x) override { run(&Backend::swiglu_backward, dx, dy, x); }
  void embedding(View y, View table, View ids) override { run(&Backend::embedding, y, table, ids); }
  void embedding_backward(View dtable, View dy, View ids) override {
    run(&Backend::embedding_backward, dtable, dy, ids);
  }
  void timestep_embedding(View y, View t, float max_period) override {
    run(&Backend::timestep_embedding, y, t, max_period);
  }
  void scatter_rows(View y, View x, View rows) override { run(&Backend::scatter_rows, y, x, rows); }
  void rope_into_cache(View turned, View keys, View values, View q, View k, View v, View cos, View sin, RopePairs pairs,
                       View rows) override {
    run(&Backend::rope_into_cache, turned, keys, values, q, k, v, cos, sin, pairs, rows);
  }
  void cross_entropy(View loss, View dlogits, View logits, View targets) override {
    run(&Backend::cross_entropy, loss, dlogits, logits, targets);
  }
  void mse(View loss, View a, View b) override { run(&Backend::mse, loss, a, b); }
  void mse_backward(View da, View dloss, View a, View b) override { run(&Backend::mse_backward, da, dloss, a, b); }
  void optimizer_step(const std::vector<OptimizerSlot>& slots, const OptimizerStep& step, View scalars) override {
    run(&Backend::optimizer_step, slots, step, scalars);
  }
  void sum_of_squares(View total, const std::vector<View>& tensors) override {
    run(&Backend::sum_of_squares, total, tensors);
  }
  void argmax(View ids, View largest, View x) override { run(&Backend::argmax, ids, largest, x); }

 private:
  // A range of host bytes that views of one call share, and its twin on the device.
  struct Region {
    char *begin, *end;
    Tensor twin;
  };

  template <class... P, class... A>
  void run(void (Backend::*method)(P...), const A&... arguments) {
    std::vector<Region> regions;
    (collect(regions, arguments), ...);
    merge(regions);
    for (Region& r : regions) {
      r.twin = Tensor::empty({r.end - r.begin}, DType::u8, device_.memory());
      device_.memory().write(r.twin.view().data, r.begin, size_t(r.end - r.begin));
    }
    (device_.*method)(moved(regions, arguments)...);
    for (const Region& r : regions) device_.memory().read(r.begin, r.twin.view().data, size_t(r.end - r.begin));
  }

  template <class T>
  static void collect(std::vector<Region>&, const T&) {}
  static void collect(std::vector<Region>& regions, const View& v) {
    if (!v || v.numel() == 0) return;
    int64_t last = 0;
    for (int d = 0; d < v.rank(); ++d) last += (v.shape[d] - 1) * v.stride[d];
    regions.push_back({v.as<char>(), v.as<char>() + bytes_of(v.dtype, last + 1), {}});
  }
  static void collect(std::vector<Region>& regions, const Modulation& m) {
    for (const View& v : {m.scale, m.shift}) collect(regions, v);
  }
  static void collect(std::vector<Region>& regions, const std::vector<View>& views) {
    for (const View& v : views) collect(regions, v);
  }
  static void collect(std::vector<Region>& regions, const std::vector<OptimizerSlot>& slots) {
    for (const OptimizerSlot& s : slots) {
      collect(regions, s.states);
      for (const View& v : {s.param, s.grad, s.average, s.copy}) collect(regions, v);
    }
  }

  static void collect(std::vector<Region>& regions, const Dropout& dropout) { collect(regions, dropout.draw); }
  static void collect(std::vector<Region>& regions, const LoraFactors& lora) {
    collect(regions, lora.down);
    collect(regions, lora.dropout);
    for (const LoraBlock& block : lora.blocks) collect(regions, block.up);
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

  template <class T>
  static T moved(const std::vector<Region>&, const T& value) {
    return value;
  }
  static View moved(const std::vector<Region>& regions, View v) {
    for (const Region& r : regions)
      if (r.begin <= v.as<char>() && v.as<char>() < r.end) {
        v.data = r.twin.view().as<char>() + (v.as<char>() - r.begin);
        break;
      }
    return v;
  }
  static Modulation moved(const std::vector<Region>& regions, const Modulation& m) {
    return {moved(regions, m.scale), moved(regions, m.shift)};
  }
  static std::vector<View> moved(const std::vector<Region>& regions, const std::vector<View>& views) {
    std::vector<View> result;
    for (const View& v : views) result.push_back(moved(regions, v));
    return result;
  }
  static std::vector<OptimizerSlot> moved(const std::vector<Region>& regions, const std::vector<OptimizerSlot>& slots) {
    std::vector<OptimizerSlot> result;
    for (const OptimizerSlot& s : slots)
      result.push_back({moved(regions, s.param), moved(regions, s.grad), moved(regions, s.states),
                        moved(regions, s.average), moved(regions, s.copy)});
    return result;
  }

  static Dropout moved(const std::vector<Region>& regions, const Dropout& d) {
    return {d.p, d.seed, moved(regions, d.draw)};
  }
  static LoraFactors moved(const std::vector<Region>& regions, LoraFactors lora) {
    lora.down = moved(regions, lora.down);
    lora.dropout = moved(regions, lora.dropout);
    for (LoraBlock& block : lora.blocks) block.up = moved(regions, block.up);
    return lora;
  }

  Backend& device_;
};

}  // namespace wick::probe
