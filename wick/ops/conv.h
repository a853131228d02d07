// Convolution and resampling of images [B, H, W, C].
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

// w [O, KH, KW, I], bias [O] or empty. As with linear, a frozen w gets no gradient and saves no activation. `added`, if
// not empty, broadcasts to the result.
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2d& conv, const Tensor& added = {});
Tensor upsample_nearest(const Tensor& x, int factor);

}  // namespace wick
