#include "wick/core/shape.h"

namespace wick {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

}  // namespace wick
