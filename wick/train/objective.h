// What training minimises.
#pragma once

#include "wick/models/sdxl.h"
#include "wick/pipelines/noise_schedule.h"
#include "wick/train/train_rng.h"

namespace wick {

// B examples of one size; all but the ids in the model's memory.
struct Batch {
  Tensor latents;         // [B, h, w, 4], scaled as the UNet sees them
  TextConditioning text;  // of frozen encoders; empty where `ids` are to be encoded under the tape
  Tensor ids, ids_2;      // [B, 77] i64, or empty
  Tensor time_ids;        // [B, 6]
};

// The simplified objective of DDPM (Ho et al., 2020, equation 14): the mean squared error of the noise that the UNet
// finds in a noised latent. noise has the latents' shape; timesteps [B] i64.
Tensor noise_prediction_loss(const Sdxl& sdxl, const NoiseSchedule& schedule, const Batch& batch, const Tensor& noise,
                             const Tensor& timesteps);
// The same with noise and uniform timesteps drawn.
Tensor noise_prediction_loss(const Sdxl& sdxl, const NoiseSchedule& schedule, const Batch& batch, TrainRng& rng);

// The same in two parts: what is random, and the rest.
struct NoisedBatch {
  Tensor sample, noise;   // [B, h, w, 4]
  Tensor timesteps;       // [B] f32
  Tensor time_ids;        // [B, 6]
  TextConditioning text;  // or ids, as in Batch
  Tensor ids, ids_2;
};
NoisedBatch noised(const NoiseSchedule& schedule, const Batch& batch, TrainRng& rng);
Tensor noise_prediction_loss(const Sdxl& sdxl, const NoisedBatch& batch);

// A sample of the encoder's posterior: mean + exp(logvar / 2) * noise.
Tensor sample(const Gaussian& posterior, const Tensor& noise);

// The VAE's negative evidence bound (Kingma & Welling, 2014), as means over elements: the squared error of the pictures
// that come back, plus kl_weight times the divergence of the posterior from a unit normal. pictures [B, H, W, 3], noise
// of the latents' shape.
Tensor autoencoder_loss(const VaeEncoder& encoder, const VaeDecoder& decoder, const Tensor& pictures, float kl_weight,
                        const Tensor& noise);

}  // namespace wick
