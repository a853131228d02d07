// The losses of training.
#pragma once

#include "wick/models/vae.h"
#include "wick/pipelines/diffusion.h"
#include "wick/train/train_rng.h"

namespace wick {

// B examples of one size.
struct Batch {
  Tensor latents;             // [B, h, w, C] in the model's memory
  NamedTensors conditioning;  // the model's own, not yet encoded where it trains its text encoders
  Tensor weights = {};        // of the loss, f32 [B, h, w, 1] or [B, 1, 1, 1] in the model's memory; none: all are 1
};

// The parts of a noised batch, beside its conditioning, as Noised has them.
inline constexpr const char *kNoisedLatents = "noised latents", *kTimesteps = "timesteps", *kTarget = "target",
                            *kLossWeights = "loss weights";

// The inputs of a step, with noise and times drawn or given.
NamedTensors noised(const Process& process, const Batch& batch, TrainRng& rng, const TimestepOptions& options = {});
NamedTensors noised(const Process& process, const Batch& batch, const Tensor& noise, const Tensor& times);

// The mean squared error of the prediction for a noised batch: with DDPM's process the simplified objective of
// Ho et al., 2020, equation 14. With weights the mean of the squares times them: where those are 0, it counts a 0. Text
// encoders that are trained run under the tape.
Tensor denoising_loss(const Diffusion& model, const NamedTensors& noised_batch);
Tensor denoising_loss(const Diffusion& model, const Batch& batch, TrainRng& rng);

// The VAE's negative evidence bound (Kingma & Welling, 2014), as means over elements: the squared error of the pictures
// that come back, plus kl_weight times the divergence of the posterior from a unit normal. pictures [B, H, W, 3], noise
// of the latents' shape.
Tensor autoencoder_loss(const VaeEncoder& encoder, const VaeDecoder& decoder, const Tensor& pictures, float kl_weight,
                        const Tensor& noise);

}  // namespace wick
