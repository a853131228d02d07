// What adapters make of a layer: each is a function around the layer below it, which is the frozen weight under the
// adapters that come before. So adapters of any kinds meet on one layer, and the weight stays as it is held, quantised
// or streamed.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "wick/ops/conv.h"

namespace wick {

class LayerAdapter;

// A linear or a convolution, as an adapter finds it. Arguments as in ops.
class LayerBelow {
 public:
  using Adapters = std::span<const std::shared_ptr<const LayerAdapter>>;

  // `conv` is null for a linear. Without w the layer is what a weight elsewhere made of x: the residual.
  LayerBelow(Tensor weight, const Conv2d* convolution, Adapters adapters)
      : w(std::move(weight)), conv(convolution), adapters_(adapters) {}

  Tensor operator()(const Tensor& x, const Tensor& bias, const Tensor& residual = {}, bool ends_block = false) const;
  // The same for outputs [first, end) alone. It refers to this one.
  LayerBelow outputs(int64_t first, int64_t end) const;
  bool is_bare() const { return adapters_.empty() && !whole_; }  // nothing but w
  Tensor merged() const;                                         // its weight in f32, with the adapters in it

  Tensor w;
  const Conv2d* conv;

 private:
  Adapters adapters_;
  const LayerBelow* whole_ = nullptr;  // of which this one is the outputs [first_, end_)
  int64_t first_ = 0, end_ = 0;
};

class LayerAdapter {
 public:
  virtual ~LayerAdapter() = default;
  virtual Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                         bool ends_block) const = 0;
  // swiglu of that for a bare linear; for inference.
  virtual Tensor gated_linear(const Tensor& x, const Tensor& w, const Tensor& bias) const;
  // The weight with the adapter in it: f32, in w's layout and memory: [out, in], or [O, KH, KW, I] of a convolution.
  virtual Tensor merged(const Tensor& w) const = 0;
  // The bias with the adapter in it, f32 [out]. It may be empty, which is zeros, before and after.
  virtual Tensor merged_bias(const Tensor& bias) const { return bias; }
  virtual bool changes_bias() const { return false; }
  // Rows [..., dim] of an embedding's table, looked up for ids i64 [...], with the adapter in them. Other layers'
  // adapters have none.
  virtual Tensor looked_up(const Tensor& ids, const Tensor& rows) const;
  // Whether it is more than a function of x that is added to the layer's output.
  virtual bool needs_weight() const { return false; }
  // Called once, when the values of the weight below are there.
  virtual void rest_on(const Tensor&) const {}
};

// The adapters of one layer, or of several linears side by side, each on those before it. There may be several sets of
// them, of which one is in use.
class AdapterStack {
 public:
  using Adapters = std::vector<std::shared_ptr<const LayerAdapter>>;

  explicit AdapterStack(Adapters adapters) : sets_{std::move(adapters)} {}
  AdapterStack(std::vector<Adapters> sets, std::shared_ptr<const size_t> in_use)
      : sets_(std::move(sets)), in_use_(std::move(in_use)) {}

  // Without w: the residual, which is what a weight elsewhere made of x, and the adapters' own outputs.
  Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& residual = {},
                bool ends_block = false) const;
  Tensor gated_linear(const Tensor& x, const Tensor& w, const Tensor& bias) const;  // for inference
  Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2d& conv) const;
  Tensor embedding(const Tensor& table, const Tensor& ids, DType activations) const;
  Tensor merged(const Tensor& w) const;
  Tensor merged_bias(const Tensor& bias) const;  // see LayerAdapter
  bool changes_bias() const;
  bool needs_weight() const;            // in some set
  void rest_on(const Tensor& w) const;  // in all

 private:
  const Adapters& adapters() const { return sets_[*in_use_]; }

  std::vector<Adapters> sets_;
  std::shared_ptr<const size_t> in_use_ = std::make_shared<const size_t>(0);
};
using AdapterOfLayer = std::shared_ptr<const AdapterStack>;  // null: none

// An adapter of some outputs of a layer.
struct OutputsAdapter {
  int64_t first, end;
  std::shared_ptr<const LayerAdapter> adapter;
};
// Of a layer with so many outputs; the parts overlap nowhere.
std::shared_ptr<const LayerAdapter> on_outputs(std::vector<OutputsAdapter> parts, int64_t outputs);

// Adds a dense change [out, in] or [O, KH, KW, I], in the dtype of activations.
std::shared_ptr<const LayerAdapter> dense_change(const Tensor& change);

// y with what a layer adds to it; both may be empty.
Tensor finished(Tensor y, const Tensor& bias, const Tensor& residual);

// x [..., D] times gain f32 [D]. Only the gain's difference from 1 is rounded to x's dtype.
Tensor scaled_channels(const Tensor& x, const Tensor& gain);

}  // namespace wick
