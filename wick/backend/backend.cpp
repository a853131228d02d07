#include "wick/backend/backend.h"

namespace wick {

void Backend::gated_linear(View y, View x, View w, View bias) {
  Shape wide = y.shape;
  wide[wide.rank() - 1] = w.shape[0];
  const Tensor both = Tensor::empty(wide, y.dtype, memory());
  linear(both, x, w, bias);
  swiglu(y, both);
}

void Backend::rope_into_cache(View turned, View keys, View values, View q, View k, View v, View cos, View sin,
                              RopePairs pairs, View rows) {
  const Tensor turned_keys = Tensor::empty(k.shape, k.dtype, memory());
  rope(turned, q, cos, sin, pairs, false);
  rope(turned_keys, k, cos, sin, pairs, false);
  scatter_rows(keys, turned_keys, rows);
  scatter_rows(values, v, rows);
}

}  // namespace wick
