#include "wick/ops/finite.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "wick/backend/backend.h"
#include "wick/ops/shape.h"

namespace wick {

bool is_finite(const Tensor& tensor) {
  if (!tensor) return true;
  Memory& memory = tensor.memory();
  const Tensor total = Tensor::empty({1}, DType::f32, memory), once = contiguous(cast(tensor.detached(), DType::f32));
  memory.backend().sum_of_squares(total, {once});
  if (std::isfinite(total.item())) return true;
  // Large numbers overflow when squared without being infinite themselves.
  const std::vector<float> values = once.to_vector();
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace wick
