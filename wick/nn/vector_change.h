// A frozen vector of a norm with the changes that adapters make to it: w + m d. It is computed once for each set of
// adapters that comes into use, and layers read the one tensor.
#pragma once

#include <memory>
#include <vector>

#include "wick/core/tensor.h"

namespace wick {

class VectorChange {
 public:
  // The sum of the changes of each set, f32 [n] on the host; empty where a set has none.
  VectorChange(std::vector<Tensor> changes, std::shared_ptr<const size_t> in_use, int64_t count, Memory& memory);

  const Tensor& value() const { return value_; }  // f32 [n], once there is a base
  void rest_on(const Tensor& base) const;         // which may leave its place afterwards
  void refresh() const;                           // for the set in use; enqueued
  Tensor merged(const Tensor& base) const;        // f32, where the base is

 private:
  std::vector<Tensor> changes_;
  std::shared_ptr<const size_t> in_use_;
  Tensor base_, value_;
};

}  // namespace wick
