// What adapters make of a layer: each is a function around the layer below it, which is the frozen weight under the
// adapters that come before. So adapters of any kinds meet on one layer, and the weight stays as it is held, quantised
// or streamed.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "wick/ops/conv.h"
#include "wick/ops/lora.h"

namespace wick {

class LayerAdapter;

// A linear or a convolution, as an adapter finds it: the outputs that the adapter is for, under the adapters before it.
// Where those are some of the layer's outputs, the adapter reaches their rows of the weight and no others.
class LayerBelow {
 public:
  using Adapters = std::span<const std::shared_ptr<const LayerAdapter>>;

  // All outputs of a layer. `conv` is null for a linear. Without w the layer is what a weight elsewhere made of x: the
  // residual.
  LayerBelow(Tensor w, const Conv2d* conv, Adapters adapters) : w_(std::move(w)), conv_(conv), adapters_(adapters) {}

  // Arguments as in ops; bias and residual are of these outputs.
  Tensor operator()(const Tensor& x, const Tensor& bias, const Tensor& residual = {}, bool ends_block = false) const;
  // Outputs [first, end) of these.
  LayerBelow outputs(int64_t first, int64_t end) const;
  const Conv2d* conv() const { return conv_; }
  // Its weight as it is held, where no adapter comes before; else empty.
  Tensor bare_weight() const;
  // Its weight with the adapters in it, f32; as it is held where there are none.
  Tensor weight() const;

 private:
  struct Outputs {
    int64_t first, end;
  };
  Tensor rows_of(const Tensor& w) const;

  Tensor w_;  // of all outputs
  const Conv2d* conv_;
  Adapters adapters_;
  std::optional<Outputs> part_;  // all without
};

class LayerAdapter {
 public:
  virtual ~LayerAdapter() = default;
  // The layer below with the adapter. `bias` is merged_bias() of all adapters already.
  virtual Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                         bool ends_block) const = 0;
  // Outputs [first, end) of forward(); bias and residual are of these alone. `below` has all that the adapter is for.
  virtual Tensor forward_outputs(const LayerBelow& below, int64_t first, int64_t end, const Tensor& x,
                                 const Tensor& bias, const Tensor& residual) const;
  // swiglu of forward() for a bare linear; for inference.
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
  Tensor bias_for_layers(const Tensor& bias) const { return changes_bias() ? merged_bias(bias) : bias; }

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

// A LoRA on the layer below, in one operation where that is a weight alone.
Tensor lora_on(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Lora& lora, const Tensor& residual,
               bool ends_block);

// Adds a dense change [out, in] or [O, KH, KW, I], in the dtype of activations.
std::shared_ptr<const LayerAdapter> dense_change(const Tensor& change);

// y with what a layer adds to it; both may be empty.
Tensor finished(Tensor y, const Tensor& bias, const Tensor& residual);

// x [..., D] times gain f32 [D]. Only the gain's difference from 1 is rounded to x's dtype.
Tensor scaled_channels(const Tensor& x, const Tensor& gain);

}  // namespace wick
