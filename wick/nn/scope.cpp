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

Tensor Scope::load_norm(const std::string& name, const Shape& shape) const {
  const Tensor base = load(name, shape);
  if (!adapter_) return base;
  const size_t dot = name.rfind('.');
  const std::string module = dot == name.npos ? path_ : path_ + "." + name.substr(0, dot);
  const bool is_bias = name.substr(dot == name.npos ? 0 : dot + 1) == "bias";
  const auto change = adapter_->match_vector(module, is_bias, shape[0], place());
  if (!change) return base;
  weights_.when_read([change, base] { change->rest_on(base); });
  return change->value();
}

void Scope::check_base(const LoraTarget& target) const {
  if (adapter_) adapter_->check_base(site(target));
}

}  // namespace wick
