#include "wick/nn/scope.h"

#include <utility>

#include "wick/ops/shape.h"

namespace wick {

Scope::Scope(Weights weights, std::string component, Adapter* adapter)
    : weights_(std::move(weights)), path_(std::move(component)), adapter_(adapter) {}

Scope Scope::operator/(const std::string& name) const {
  Scope inner = *this;
  inner.path_ += "." + name;
  inner.prefix_ += name + ".";
  return inner;
}

bool Scope::has(const std::string& name) const { return weights_.has(prefix_ + name); }

Tensor Scope::load(const std::string& name, const Shape& shape) const { return weights_.load(prefix_ + name, shape); }

Tensor Scope::load_conv(const std::string& name, const Shape& file_shape) const {
  return weights_.load_conv(prefix_ + name, file_shape);
}

Tensor Scope::activation(const Tensor& x) const { return cast(x, place().activations); }

std::optional<Lora> Scope::adapt(const LoraTarget& target) const {
  return adapter_ ? adapter_->match(path_, target, *place().memory) : std::nullopt;
}

}  // namespace wick
