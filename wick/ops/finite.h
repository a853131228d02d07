// Whether results are numbers.
#pragma once

#include "wick/core/tensor.h"

namespace wick {

bool is_finite(const Tensor& tensor);  // of floats, any strides

}  // namespace wick
