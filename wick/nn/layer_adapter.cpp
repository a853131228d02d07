#include "wick/nn/layer_adapter.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "wick/ops/elementwise.h"
#include "wick/ops/embedding.h"
#include "wick/ops/gated.h"
#include "wick/ops/matmul.h"
#include "wick/ops/shape.h"

namespace wick {

Tensor LayerBelow::operator()(const Tensor& x, const Tensor& bias, const Tensor& residual, bool ends_block) const {
  if (!adapters_.empty()) {
    const LayerAdapter& last = *adapters_.back();
    const LayerBelow below(w_, conv_, adapters_.first(adapters_.size() - 1));
    return part_ ? last.forward_outputs(below, part_->first, part_->end, x, bias, residual)
                 : last.forward(below, x, bias, residual, ends_block);
  }
  if (!w_) return finished(residual, bias, {});
  const Tensor w = rows_of(w_);
  return conv_ ? conv2d(x, w, bias, *conv_, residual) : linear(x, w, bias, residual, ends_block);
}

LayerBelow LayerBelow::outputs(int64_t first, int64_t end) const {
  const int64_t before = part_ ? part_->first : 0;
  assert(first >= 0 && first < end && (!part_ || before + end <= part_->end));
  LayerBelow part = *this;
  part.part_ = {before + first, before + end};
  return part;
}

Tensor LayerBelow::rows_of(const Tensor& w) const { return part_ && w ? slice(w, 0, part_->first, part_->end) : w; }

Tensor LayerBelow::bare_weight() const { return adapters_.empty() ? rows_of(w_) : Tensor(); }

Tensor LayerBelow::weight() const {
  if (adapters_.empty()) return rows_of(w_);
  Tensor all = cast(w_, DType::f32);
  for (const auto& adapter : adapters_) all = adapter->merged(all);
  return rows_of(all);
}

Tensor LayerAdapter::forward_outputs(const LayerBelow& below, int64_t first, int64_t end, const Tensor& x,
                                     const Tensor& bias, const Tensor& residual) const {
  return finished(slice(forward(below, x, {}, {}, false), -1, first, end), bias, residual);
}

Tensor LayerAdapter::looked_up(const Tensor&, const Tensor& rows) const {
  assert(false);
  return rows;
}

Tensor LayerAdapter::gated_linear(const Tensor& x, const Tensor& w, const Tensor& bias) const {
  return swiglu(forward(LayerBelow(w, nullptr, {}), x, bias, {}, false));
}

Tensor AdapterStack::linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& residual,
                            bool ends_block) const {
  return LayerBelow(w, nullptr, adapters())(x, bias_for_layers(bias), residual, ends_block);
}

Tensor AdapterStack::gated_linear(const Tensor& x, const Tensor& w, const Tensor& bias) const {
  if (adapters().empty()) return wick::gated_linear(x, w, bias);
  if (adapters().size() > 1) return swiglu(linear(x, w, bias));
  return adapters().front()->gated_linear(x, w, bias_for_layers(bias));
}

Tensor AdapterStack::conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2d& conv) const {
  return LayerBelow(w, &conv, adapters())(x, bias_for_layers(bias));
}

Tensor AdapterStack::merged(const Tensor& w) const {
  Tensor all = cast(w, DType::f32);
  for (const auto& adapter : adapters()) all = adapter->merged(all);
  return all;
}

Tensor AdapterStack::merged_bias(const Tensor& bias) const {
  Tensor all = bias ? cast(bias, DType::f32) : bias;
  for (const auto& adapter : adapters()) all = adapter->merged_bias(all);
  return all;
}

bool AdapterStack::changes_bias() const {
  return std::ranges::any_of(adapters(), [](const auto& adapter) { return adapter->changes_bias(); });
}

Tensor AdapterStack::embedding(const Tensor& table, const Tensor& ids, DType activations) const {
  Tensor rows = wick::embedding(table, ids, activations);
  for (const auto& adapter : adapters()) rows = adapter->looked_up(ids, rows);
  return rows;
}

bool AdapterStack::needs_weight() const {
  const auto needs = [](const auto& adapter) { return adapter->needs_weight(); };
  return std::ranges::any_of(sets_, [&](const Adapters& set) { return std::ranges::any_of(set, needs); });
}

void AdapterStack::rest_on(const Tensor& w) const {
  for (const Adapters& set : sets_)
    for (auto adapter = set.begin(); adapter != set.end(); ++adapter) {
      if (!(*adapter)->needs_weight()) continue;
      Tensor below = w;
      for (auto under = set.begin(); under != adapter; ++under) below = (*under)->merged(below);
      (*adapter)->rest_on(below);
    }
}

namespace {

class OutputsOfLayer final : public LayerAdapter {
 public:
  OutputsOfLayer(std::vector<OutputsAdapter> parts, int64_t outputs) {
    std::ranges::sort(parts, {}, &OutputsAdapter::first);
    int64_t done = 0;
    for (OutputsAdapter& part : parts) {
      if (done < part.first) parts_.push_back({done, part.first, nullptr});
      done = part.end;
      parts_.push_back(std::move(part));
    }
    if (done < outputs) parts_.push_back({done, outputs, nullptr});
  }

  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool) const override {
    return forward_outputs(below, 0, parts_.back().end, x, bias, residual);
  }

  Tensor forward_outputs(const LayerBelow& below, int64_t first, int64_t end, const Tensor& x, const Tensor& bias,
                         const Tensor& residual) const override {
    std::vector<Tensor> all;
    for (const OutputsAdapter& part : parts_) {
      const int64_t begin = std::max(first, part.first), stop = std::min(end, part.end);
      if (begin >= stop) continue;
      const Tensor b = bias ? slice(bias, 0, begin - first, stop - first) : bias,
                   r = residual ? slice(residual, -1, begin - first, stop - first) : residual;
      all.push_back(forward_of(part, below, begin, stop, x, b, r));
    }
    return all.size() == 1 ? all.front() : cat(all, -1);
  }

  Tensor merged(const Tensor& w) const override {
    std::vector<Tensor> all;
    for (const auto& [first, end, adapter] : parts_) {
      const Tensor rows = slice(w, 0, first, end);
      all.push_back(adapter ? adapter->merged(rows) : cast(rows, DType::f32));
    }
    return cat(all, 0);
  }

  Tensor merged_bias(const Tensor& bias) const override {
    std::vector<Tensor> all;
    for (const auto& [first, end, adapter] : parts_) {
      const Tensor part = bias ? slice(bias, 0, first, end) : bias;
      all.push_back(adapter ? adapter->merged_bias(part) : part);
    }
    const auto some = std::ranges::find_if(all, [](const Tensor& part) { return bool(part); });
    if (some == all.end()) return {};
    Memory& memory = some->memory();
    for (size_t i = 0; i < all.size(); ++i)
      if (!all[i]) all[i] = zeros({parts_[i].end - parts_[i].first}, DType::f32, memory);
    return cat(all, 0);
  }

  bool changes_bias() const override {
    return std::ranges::any_of(parts_, [](const auto& part) { return part.adapter && part.adapter->changes_bias(); });
  }

  bool needs_weight() const override {
    return std::ranges::any_of(parts_, [](const auto& part) { return part.adapter && part.adapter->needs_weight(); });
  }

  void rest_on(const Tensor& w) const override {
    for (const auto& [first, end, adapter] : parts_)
      if (adapter && adapter->needs_weight()) adapter->rest_on(slice(w, 0, first, end));
  }

 private:
  // Outputs [begin, end), which are some of the part's.
  static Tensor forward_of(const OutputsAdapter& part, const LayerBelow& below, int64_t begin, int64_t end,
                           const Tensor& x, const Tensor& bias, const Tensor& residual) {
    if (!part.adapter) return below.outputs(begin, end)(x, bias, residual);
    const LayerBelow under = below.outputs(part.first, part.end);
    return begin == part.first && end == part.end
               ? part.adapter->forward(under, x, bias, residual, false)
               : part.adapter->forward_outputs(under, begin - part.first, end - part.first, x, bias, residual);
  }

  std::vector<OutputsAdapter> parts_;  // of all outputs; some without an adapter
};

class DenseChange final : public LayerAdapter {
 public:
  explicit DenseChange(Tensor change) : change_(std::move(change)) {}

  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool ends_block) const override {
    const Conv2d* const conv = below.conv();
    const Tensor share = conv ? conv2d(x, change_, {}, *conv, residual) : linear(x, change_, {}, residual);
    return below(x, bias, share, ends_block);
  }

  Tensor merged(const Tensor& w) const override { return cast(w, DType::f32) + cast(change_, DType::f32); }

 private:
  Tensor change_;
};

}  // namespace

std::shared_ptr<const LayerAdapter> on_outputs(std::vector<OutputsAdapter> parts, int64_t outputs) {
  if (parts.size() == 1 && parts.front().end - parts.front().first == outputs) return parts.front().adapter;
  return std::make_shared<OutputsOfLayer>(std::move(parts), outputs);
}

std::shared_ptr<const LayerAdapter> dense_change(const Tensor& change) { return std::make_shared<DenseChange>(change); }

Tensor lora_on(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Lora& lora, const Tensor& residual,
               bool ends_block) {
  const Tensor w = below.bare_weight(), rest = w ? residual : below(x, bias, residual), shift = w ? bias : Tensor();
  return below.conv() ? lora_conv2d(x, w, shift, *below.conv(), lora, rest)
                      : lora_linear(x, w, shift, lora, rest, ends_block);
}

Tensor finished(Tensor y, const Tensor& bias, const Tensor& residual) {
  if (bias) y = y + cast(bias, y.dtype());
  return residual ? y + residual : y;
}

Tensor scaled_channels(const Tensor& x, const Tensor& gain) {
  const int64_t channels = gain.dim(0);
  const Tensor gate = cast(reshape(gain + -1.0f, {1, channels}), x.dtype()), rows = reshape(x, {1, -1, channels});
  return reshape(gated_add(rows, gate, rows), x.shape());
}

}  // namespace wick
