// Tensors under names, in the order in which they were added: a batch, or the conditioning of a model.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wick/core/error.h"
#include "wick/core/tensor.h"

namespace wick {

struct NamedTensor {
  std::string name;
  Tensor value;
};

class NamedTensors {
 public:
  NamedTensors() = default;
  NamedTensors(std::initializer_list<NamedTensor> tensors) {
    for (const NamedTensor& t : tensors) add(t.name, t.value);
  }

  void add(std::string name, Tensor value) {  // throws Error where the name is taken
    check(!has(name), "there are two tensors named {}", name);
    tensors_.push_back({std::move(name), std::move(value)});
  }
  void add(const NamedTensors& others) {
    for (const NamedTensor& t : others) add(t.name, t.value);
  }

  bool has(std::string_view name) const { return std::ranges::find(tensors_, name, &NamedTensor::name) != end(); }
  const Tensor& operator[](std::string_view name) const {  // throws Error where there is none
    const auto found = std::ranges::find(tensors_, name, &NamedTensor::name);
    check(found != end(), "there is no tensor named {}", name);
    return found->value;
  }

  size_t size() const { return tensors_.size(); }
  std::vector<NamedTensor>::const_iterator begin() const { return tensors_.begin(); }
  std::vector<NamedTensor>::const_iterator end() const { return tensors_.end(); }

 private:
  std::vector<NamedTensor> tensors_;
};

}  // namespace wick
