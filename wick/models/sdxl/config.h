// The sizes of Stable Diffusion XL (Podell et al., 2023): two CLIP text encoders, a UNet and a VAE that fit each other.
#pragma once

#include "wick/models/clip.h"
#include "wick/models/sdxl/unet.h"
#include "wick/models/vae.h"

namespace wick {

struct SdxlConfig {
  ClipConfig text_encoder, text_encoder_2;
  UNetConfig unet;
  VaeConfig vae;
  static SdxlConfig read(const Checkpoint& model);  // throws Error where the parts do not fit each other
};

}  // namespace wick
