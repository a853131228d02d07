// Tables and position codes.
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

// table [V, D], ids i64 [...] -> [..., D] in `dtype`. Ids on the host are range-checked, and move to the table's
// device.
Tensor embedding(const Tensor& table, const Tensor& ids, DType dtype = DType::f32);

// Sinusoidal embedding of t [N] (Vaswani et al., 2017) -> [N, dim], f32: cosines then sines, as diffusers'
// flip_sin_to_cos=True, downscale_freq_shift=0. Not differentiable.
Tensor timestep_embedding(const Tensor& t, int dim, float max_period = 10000);

}  // namespace wick
