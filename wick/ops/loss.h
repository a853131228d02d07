#pragma once

#include "wick/autograd/tape.h"

namespace wick {

Tensor mse_loss(const Tensor& prediction, const Tensor& target);  // mean of squares, shape [1]; target is a constant

}  // namespace wick
