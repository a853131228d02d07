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

DType Scope::dtype_of(const std::string& name, const Shape& shape) const {
  return weights_.dtype_of(prefix_ + name, shape);
}

Tensor Scope::load(const std::string& name, const Shape& shape) const { return weights_.load(prefix_ + name, shape); }

Tensor Scope::load_conv(const std::string& name, const Shape& file_shape) const {
  return weights_.load_conv(prefix_ + name, file_shape);
}

Tensor Scope::activation(const Tensor& x) const { return cast(x, place().activations); }

StackedTensor Scope::load_stacked(const std::vector<std::string>& names, const std::vector<Shape>& shapes) const {
  std::vector<std::string> full;
  for (const std::string& name : names) full.push_back(prefix_ + name);
  return weights_.load_stacked(full, shapes);
}

LoraSite Scope::site(const LoraTarget& target) const {
  if (weights_.is_outline()) return {.path = path_, .target = target};
  const auto base = [weights = weights_, name = prefix_ + "weight", target] {
    return weights.read(name, {target.out, target.in});
  };
  return {.path = path_, .target = target, .base = base};
}

void Scope::check_base(const LoraTarget& target) const {
  if (adapter_) adapter_->check_base(site(target));
}

AdapterOfLayer Scope::adapt(const std::vector<LoraSite>& sites) const {
  return adapter_ ? adapter_->match(sites, place()) : nullptr;
}

}  // namespace wick
