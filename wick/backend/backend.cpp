#include "wick/backend/backend.h"

namespace wick {

void Backend::fused_linear(View y, View x, View w, View bias, View norm, float eps, bool gated) {
  Tensor normed;
  if (norm) {
    normed = Tensor::empty(x.shape, x.dtype, memory());
    rms_norm(normed, {}, x, norm, {}, eps);
    x = normed;
  }
  if (!gated) return linear(y, x, w, bias);
  Shape wide = y.shape;
  wide[wide.rank() - 1] = w.shape[0];
  const Tensor both = Tensor::empty(wide, y.dtype, memory());
  linear(both, x, w, bias);
  swiglu(y, both);
}

}  // namespace wick
