#include "wick/backend/backend.h"

namespace wick {

void Backend::gated_linear(View y, View x, View w, View bias) {
  Shape wide = y.shape;
  wide[wide.rank() - 1] = w.shape[0];
  const Tensor both = Tensor::empty(wide, y.dtype, memory());
  linear(both, x, w, bias);
  swiglu(y, both);
}

void Backend::rope_into_cache(const RopeIntoCacheArgs& a) {
  const Tensor turned_keys = Tensor::empty(a.k.shape, a.k.dtype, memory());
  rope(a.turned, a.q, a.cos, a.sin, a.pairs, false);
  rope(turned_keys, a.k, a.cos, a.sin, a.pairs, false);
  scatter_rows(a.keys, turned_keys, a.rows);
  scatter_rows(a.values, a.v, a.rows);
}

}  // namespace wick
