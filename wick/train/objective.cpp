#include "wick/train/objective.h"

#include <vector>

namespace wick {

namespace {

NoisedBatch noised(const NoiseSchedule& schedule, const Batch& batch, const Tensor& noise, const Tensor& timesteps) {
  Memory& memory = batch.latents.memory();
  return {.sample = schedule.add_noise(batch.latents, noise, timesteps),
          .noise = noise,
          .timesteps = Tensor::of(timesteps.to_vector(), timesteps.shape(), memory),
          .time_ids = batch.time_ids,
          .text = batch.text,
          .ids = batch.ids,
          .ids_2 = batch.ids_2};
}

}  // namespace

NoisedBatch noised(const NoiseSchedule& schedule, const Batch& batch, TrainRng& rng) {
  const int64_t count = batch.latents.dim(0);
  std::vector<int64_t> timesteps;
  for (int64_t i = 0; i < count; ++i)
    timesteps.push_back(int64_t(rng.timestep.below(uint64_t(schedule.train_steps()))));
  return noised(schedule, batch, random_normal(batch.latents.shape(), rng.noise, batch.latents.memory()),
                Tensor::of(timesteps, {count}));
}

Tensor noise_prediction_loss(const Sdxl& sdxl, const NoisedBatch& batch) {
  const TextConditioning text = batch.ids ? sdxl.encode_text(batch.ids, batch.ids_2) : batch.text;
  const Tensor predicted = (*sdxl.unet)({.sample = batch.sample,
                                         .timestep = batch.timesteps,
                                         .context = text.context,
                                         .text_embeds = text.pooled,
                                         .time_ids = batch.time_ids});
  return mse_loss(predicted, batch.noise);
}

Tensor noise_prediction_loss(const Sdxl& sdxl, const NoiseSchedule& schedule, const Batch& batch, const Tensor& noise,
                             const Tensor& timesteps) {
  return noise_prediction_loss(sdxl, noised(schedule, batch, noise, timesteps));
}

Tensor noise_prediction_loss(const Sdxl& sdxl, const NoiseSchedule& schedule, const Batch& batch, TrainRng& rng) {
  return noise_prediction_loss(sdxl, noised(schedule, batch, rng));
}

Tensor sample(const Gaussian& posterior, const Tensor& noise) {
  return posterior.mean + exp(0.5f * posterior.logvar) * noise;
}

Tensor autoencoder_loss(const VaeEncoder& encoder, const VaeDecoder& decoder, const Tensor& pictures, float kl_weight,
                        const Tensor& noise) {
  const Gaussian posterior = encoder(pictures);
  const Tensor error = mse_loss(decoder(sample(posterior, noise)), pictures);
  const Tensor divergence = mean(square(posterior.mean) + exp(posterior.logvar) - posterior.logvar) + -1.0f;
  return error + (0.5f * kl_weight) * divergence;
}

}  // namespace wick
