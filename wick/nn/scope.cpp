#include "wick/nn/scope.h"

#include "wick/ops/shape.h"

namespace wick {

Scope Scope::operator/(const std::string& name) const {
  Scope inner = *this;
  inner.path_ += "." + name;
  inner.prefix_ += name + ".";
  return inner;
}

Tensor Scope::activation(const Tensor& x) const { return cast(x, place().activations); }

StackedTensor Scope::load_stacked(const std::vector<std::string>& names, const std::vector<Shape>& shapes) const {
  return weights_.load_stacked(in_file(names), shapes);
}

StackedTensor Scope::load_stacked_biases(const std::vector<std::string>& names,
                                         const std::vector<Shape>& shapes) const {
  return weights_.load_stacked_biases(in_file(names), shapes);
}

std::vector<std::string> Scope::in_file(const std::vector<std::string>& names) const {
  std::vector<std::string> full;
  for (const std::string& name : names) full.push_back(prefix_ + name);
  return full;
}

LoraSite Scope::site(const LoraTarget& target) const {
  if (weights_.is_outline()) return {.path = path_, .target = target};
  const auto base = [weights = weights_, name = prefix_ + "weight", target] {
    return weights.read(name, {target.out, target.in});
  };
  return {.path = path_, .target = target, .base = base};
}

AdapterOfLayer Scope::adapt(const std::vector<LoraSite>& sites, const Tensor& weight) const {
  if (sites_) sites_->insert(sites_->end(), sites.begin(), sites.end());
  const AdapterOfLayer adapter = adapter_ ? adapter_->match(sites, place()) : nullptr;
  if (adapter && weight && adapter->needs_weight()) weights_.when_read([adapter, weight] { adapter->rest_on(weight); });
  return adapter;
}

void Scope::check_base(const LoraTarget& target) const {
  if (adapter_) adapter_->check_base(site(target));
}

}  // namespace wick
