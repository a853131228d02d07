#include "wick/nn/vector_change.h"

#include <utility>

#include "wick/backend/backend.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {

VectorChange::VectorChange(std::vector<Tensor> changes, std::shared_ptr<const size_t> in_use, int64_t count,
                           Memory& memory)
    : changes_(std::move(changes)),
      in_use_(std::move(in_use)),
      base_(zeros({count}, DType::f32, memory)),
      value_(zeros({count}, DType::f32, memory)) {
  for (Tensor& change : changes_)
    if (change) change = change.to(memory);
}

void VectorChange::rest_on(const Tensor& base) const {
  base_.backend().copy(base_, base.detached());
  refresh();
}

void VectorChange::refresh() const { value_.backend().copy(value_, merged(base_)); }

Tensor VectorChange::merged(const Tensor& base) const {
  const Tensor &change = changes_[*in_use_], wide = cast(base, DType::f32);
  return change ? wide + change.to(base.memory()) : wide;
}

}  // namespace wick
