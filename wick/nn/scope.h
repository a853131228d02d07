// The source of a layer's weights: a path in a model, the Weights under it, and perhaps an Adapter.
//
//   Linear to_q{s / "to_q", d, d};
//
// names the layer once, with its checkpoint name and sizes. The path starts with the component ("unet",
// "text_encoder"), which the names in the component's file leave out.
#pragma once

#include <string>
#include <utility>

#include "wick/nn/adapter.h"
#include "wick/nn/weights.h"

namespace wick {

class Scope {
 public:
  Scope(Weights weights, std::string component, Adapter* adapter = nullptr)
      : weights_(std::move(weights)), path_(std::move(component)), adapter_(adapter) {}

  Scope operator/(const std::string& name) const;
  Scope operator/(int index) const { return *this / std::to_string(index); }

  // The same for the next block of the model (Weights::next_block).
  Scope next_block() const {
    Scope block = *this;
    block.weights_ = weights_.next_block();
    return block;
  }

  Scope outside_blocks() const {  // likewise (Weights::outside_blocks)
    Scope outside = *this;
    outside.weights_ = weights_.outside_blocks();
    return outside;
  }

  // The same, which adds the modules that may be adapted to `sites`, each before the adapter is asked.
  Scope watched(std::vector<LoraSite>& sites) const {
    Scope watched = *this;
    watched.sites_ = &sites;
    return watched;
  }

  const std::string& path() const { return path_; }  // "unet.down_blocks.1.attentions.0.proj_in"

  bool has(const std::string& name) const { return weights_.has(prefix_ + name); }
  DType dtype_of(const std::string& name, const Shape& shape) const { return weights_.dtype_of(prefix_ + name, shape); }
  Tensor load(const std::string& name, const Shape& shape) const { return weights_.load(prefix_ + name, shape); }
  Tensor load_bias(const std::string& name, const Shape& shape) const {
    return weights_.load_bias(prefix_ + name, shape);
  }
  // A vector of a norm, "NORM.weight" or "bias", with what the adapter has for it; f32.
  Tensor load_norm(const std::string& name, const Shape& shape) const;
  StackedTensor load_stacked(const std::vector<std::string>& names, const std::vector<Shape>& shapes) const;
  StackedTensor load_stacked_biases(const std::vector<std::string>& names, const std::vector<Shape>& shapes) const;
  Tensor read(const std::string& name, const Shape& shape) const { return weights_.read(prefix_ + name, shape); }
  Tensor load_conv(const std::string& name, const Shape& file_shape) const {
    return weights_.load_conv(prefix_ + name, file_shape);
  }
  // x in the dtype in which this model computes, as every model converts its inputs.
  Tensor activation(const Tensor& x) const;
  const Weights& weights() const { return weights_; }
  const Residence& place() const { return weights_.place(); }
  LoraSite site(const LoraTarget& target) const;  // the module at this path
  // The adapter of the module at this path, or of several that share their input, on their weight, which was handed
  // out already or is kept elsewhere (then it is empty); null if there is none.
  AdapterOfLayer adapt(const LoraTarget& target, const Tensor& weight) const { return adapt({site(target)}, weight); }
  AdapterOfLayer adapt(const std::vector<LoraSite>& sites, const Tensor& weight) const;
  bool stand_apart(const std::vector<LoraSite>& sites) const { return adapter_ && adapter_->stand_apart(sites); }
  const Adapter* adapter() const { return adapter_; }
  // For modules that are not adapted (Adapter::check_base).
  void check_base(const LoraTarget& target) const;

 private:
  std::vector<std::string> in_file(const std::vector<std::string>& names) const;

  Weights weights_;
  std::string path_;    // with the component, for adapters
  std::string prefix_;  // without it and with a dot behind it, for names in the file
  Adapter* adapter_;
  std::vector<LoraSite>* sites_ = nullptr;
};

}  // namespace wick
