// Tables and position codes.
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

Tensor embedding(const Tensor& table, const Tensor& ids);  // [V, D], i64 [...] -> [..., D]; ids are range-checked

// Sinusoidal embedding of t [N] (Vaswani et al., 2017) -> [N, dim], f32: cosines then sines, as diffusers'
// flip_sin_to_cos=True, downscale_freq_shift=0. Not differentiable.
Tensor timestep_embedding(const Tensor& t, int dim, float max_period = 10000);

}  // namespace wick
