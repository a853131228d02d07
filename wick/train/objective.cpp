#include "wick/train/objective.h"

#include "wick/ops/ops.h"

namespace wick {

NamedTensors noised(const Process& process, const Batch& batch, const Tensor& noise, const Tensor& times) {
  const Noised at = process.noised(batch.latents, noise, times);
  NamedTensors all{{kNoisedLatents, at.sample}, {kTarget, at.target}, {kTimesteps, at.timestep}};
  if (batch.weights) all.add(kLossWeights, batch.weights);
  all.add(batch.conditioning);
  return all;
}

NamedTensors noised(const Process& process, const Batch& batch, TrainRng& rng, const TimestepOptions& options) {
  const Shape& shape = batch.latents.shape();
  const Tensor times = process.draw_times(shape, rng.timestep, options);
  return noised(process, batch, random_normal(shape, rng.noise, batch.latents.memory()), times);
}

Tensor denoising_loss(const Diffusion& model, const NamedTensors& batch) {
  const Tensor prediction = model.predict(batch[kNoisedLatents], batch[kTimesteps], model.encode_text(batch));
  if (!batch.has(kLossWeights)) return mse_loss(prediction, batch[kTarget]);
  return mean(square(cast(prediction, DType::f32) - cast(batch[kTarget], DType::f32)) * batch[kLossWeights]);
}

Tensor denoising_loss(const Diffusion& model, const Batch& batch, TrainRng& rng) {
  return denoising_loss(model, noised(model.process(), batch, rng));
}

Tensor autoencoder_loss(const VaeEncoder& encoder, const VaeDecoder& decoder, const Tensor& pictures, float kl_weight,
                        const Tensor& noise) {
  const Gaussian posterior = encoder(pictures);
  const Tensor error = mse_loss(decoder(posterior.mean + exp(0.5f * posterior.logvar) * noise), pictures);
  const Tensor divergence = mean(square(posterior.mean) + exp(posterior.logvar) - posterior.logvar) + -1.0f;
  return error + (0.5f * kl_weight) * divergence;
}

}  // namespace wick
