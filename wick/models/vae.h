// The VAE of latent diffusion models (Rombach et al., 2022): images to latents of, mostly, an eighth of their side, and
// back. Images [B, H, W, C].
#pragma once

#include "wick/nn/checkpoint.h"
#include "wick/nn/layers.h"

namespace wick {

// The denoiser sees (z - shift) * scaling of a latent z.
struct LatentScale {
  float scaling, shift;
};

struct VaeConfig {
  int64_t in_channels, out_channels, latent_channels;
  std::vector<int64_t> channels;  // block_out_channels
  int layers_per_block, groups;
  float scaling_factor, shift_factor;
  bool use_quant_conv, use_post_quant_conv;
  int factor() const { return 1 << (int(channels.size()) - 1); }  // pixels per side of a latent
  // From its config and tensors (network_facts.h). Without a config it has 32 groups and the scale of its family.
  static VaeConfig read(const Checkpoint& component, const LatentScale& of_family = {0.18215f, 0});
};

struct Gaussian {
  Tensor mean, logvar;  // [B, h, w, latent_channels]; logvar clamped to [-30, 20]
};

class VaeEncoder {
 public:
  VaeEncoder(Scope s, const VaeConfig& config);
  Gaussian operator()(const Tensor& image) const;  // image in [-1, 1]

 private:
  struct Model;
  std::shared_ptr<const Model> model_;
};

class VaeDecoder {
 public:
  VaeDecoder(Scope s, const VaeConfig& config);
  Tensor operator()(const Tensor& latent) const;  // unscaled latents

 private:
  struct Model;
  std::shared_ptr<const Model> model_;
};

}  // namespace wick
