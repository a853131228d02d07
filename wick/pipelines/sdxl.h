// Stable Diffusion XL (Podell et al., 2023) as a Diffusion: two CLIP text encoders, a UNet and a VAE.
//
// Parts of its conditioning, f32 but for the ids:
//   "text states"        [B, 77, hidden + hidden_2]: the encoders' penultimate states side by side
//   "pooled text"        [B, projection]
//   "tokens", "tokens 2" [B, 77] i64 on the host, in place of the two where the text encoders are trained
//   "sizes"              [B, 6]: original height and width, crop top and left, target height and width
#pragma once

#include "wick/pipelines/diffusion.h"

namespace wick {

DiffusionFamily sdxl_family();

}  // namespace wick
