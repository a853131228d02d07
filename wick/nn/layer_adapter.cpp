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
  if (whole_) return finished(slice((*whole_)(x, {}), -1, first_, end_), bias, residual);
  if (!adapters_.empty()) {
    const LayerBelow below(w, conv, adapters_.first(adapters_.size() - 1));
    return adapters_.back()->forward(below, x, bias, residual, ends_block);
  }
  if (!w) return residual;
  return conv ? conv2d(x, w, bias, *conv, residual) : linear(x, w, bias, residual, ends_block);
}

LayerBelow LayerBelow::outputs(int64_t first, int64_t end) const {
  if (is_bare()) return LayerBelow(w ? slice(w, 0, first, end) : w, conv, {});
  LayerBelow part(w, conv, {});
  part.whole_ = this;
  part.first_ = first;
  part.end_ = end;
  return part;
}

Tensor LayerBelow::merged() const {
  if (whole_) return slice(whole_->merged(), 0, first_, end_);
  Tensor all = cast(w, DType::f32);
  for (const auto& adapter : adapters_) all = adapter->merged(all);
  return all;
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
  return LayerBelow(w, nullptr, adapters())(x, bias, residual, ends_block);
}

Tensor AdapterStack::gated_linear(const Tensor& x, const Tensor& w, const Tensor& bias) const {
  if (adapters().empty()) return wick::gated_linear(x, w, bias);
  return adapters().size() == 1 ? adapters().front()->gated_linear(x, w, bias) : swiglu(linear(x, w, bias));
}

Tensor AdapterStack::conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2d& conv) const {
  return LayerBelow(w, &conv, adapters())(x, bias);
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
  OutputsOfLayer(std::vector<OutputsAdapter> parts, int64_t outputs) : parts_(std::move(parts)), outputs_(outputs) {
    std::ranges::sort(parts_, {}, &OutputsAdapter::first);
  }

  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool) const override {
    return cat(each([&](const LayerAdapter* adapter, int64_t first, int64_t end) {
                 const LayerBelow part = below.outputs(first, end);
                 const Tensor b = bias ? slice(bias, 0, first, end) : Tensor();
                 const Tensor r = residual ? slice(residual, -1, first, end) : Tensor();
                 return adapter ? adapter->forward(part, x, b, r, false) : part(x, b, r);
               }),
               -1);
  }

  Tensor merged(const Tensor& w) const override {
    return cat(each([&](const LayerAdapter* adapter, int64_t first, int64_t end) {
                 const Tensor rows = slice(w, 0, first, end);
                 return adapter ? adapter->merged(rows) : cast(rows, DType::f32);
               }),
               0);
  }

  Tensor merged_bias(const Tensor& bias) const override {
    std::vector<Tensor> all = each([&](const LayerAdapter* adapter, int64_t first, int64_t end) {
      const Tensor part = bias ? slice(bias, 0, first, end) : bias;
      return adapter ? adapter->merged_bias(part) : part;
    });
    if (std::ranges::none_of(all, [](const Tensor& part) { return bool(part); })) return {};
    int64_t i = 0;
    each([&](const LayerAdapter*, int64_t first, int64_t end) {
      Tensor& part = all[size_t(i++)];
      return part ? part : part = zeros({end - first});
    });
    return cat(all, 0);
  }

  bool changes_bias() const override {
    return std::ranges::any_of(parts_, [](const OutputsAdapter& part) { return part.adapter->changes_bias(); });
  }

  bool needs_weight() const override {
    return std::ranges::any_of(parts_, [](const OutputsAdapter& part) { return part.adapter->needs_weight(); });
  }

  void rest_on(const Tensor& w) const override {
    for (const auto& [first, end, adapter] : parts_)
      if (adapter->needs_weight()) adapter->rest_on(slice(w, 0, first, end));
  }

 private:
  // What `make` has for each part, and for the outputs without an adapter, in their order.
  template <class Make>
  std::vector<Tensor> each(const Make& make) const {
    std::vector<Tensor> all;
    int64_t done = 0;
    for (const auto& [first, end, adapter] : parts_) {
      if (done < first) all.push_back(make(nullptr, done, first));
      all.push_back(make(adapter.get(), first, end));
      done = end;
    }
    if (done < outputs_) all.push_back(make(nullptr, done, outputs_));
    return all;
  }

  std::vector<OutputsAdapter> parts_;
  int64_t outputs_;
};

class DenseChange final : public LayerAdapter {
 public:
  explicit DenseChange(Tensor change) : change_(std::move(change)) {}

  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool ends_block) const override {
    const Tensor share = below.conv ? conv2d(x, change_, {}, *below.conv, residual) : linear(x, change_, {}, residual);
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
