#include "wick/train/objective.h"

#include <vector>

namespace wick {

Tensor noise_prediction_loss(const Sdxl& sdxl, const NoiseSchedule& schedule, const Batch& batch, const Tensor& noise,
                             const Tensor& timesteps) {
  const TextConditioning text = batch.ids ? sdxl.encode_text(batch.ids, batch.ids_2) : batch.text;
  const Tensor predicted = sdxl.unet({.sample = schedule.add_noise(batch.latents, noise, timesteps),
                                      .timestep = Tensor::of(timesteps.to_vector(), timesteps.shape(), sdxl.memory),
                                      .context = text.context,
                                      .text_embeds = text.pooled,
                                      .time_ids = batch.time_ids});
  return mse_loss(predicted, noise);
}

Tensor noise_prediction_loss(const Sdxl& sdxl, const NoiseSchedule& schedule, const Batch& batch, TrainRng& rng) {
  const int64_t count = batch.latents.dim(0);
  std::vector<int64_t> timesteps;
  for (int64_t i = 0; i < count; ++i)
    timesteps.push_back(int64_t(rng.timestep.below(uint64_t(schedule.train_steps()))));
  return noise_prediction_loss(sdxl, schedule, batch, random_normal(batch.latents.shape(), rng.noise, sdxl.memory),
                               Tensor::of(timesteps, {count}));
}

Tensor sample(const Gaussian& posterior, Rng& rng) {
  return posterior.mean + exp(0.5f * posterior.logvar) * random_normal(posterior.mean.shape(), rng, posterior.mean.memory());
}

Tensor autoencoder_loss(const VaeEncoder& encoder, const VaeDecoder& decoder, const Tensor& pictures, float kl_weight,
                        Rng& rng) {
  const Gaussian posterior = encoder(pictures);
  const Tensor error = mse_loss(decoder(sample(posterior, rng)), pictures);
  const Tensor divergence = mean(square(posterior.mean) + exp(posterior.logvar) - posterior.logvar) + -1.0f;
  return error + (0.5f * kl_weight) * divergence;
}

}  // namespace wick
