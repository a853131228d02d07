#include "wick/train/objective.h"

#include <cmath>
#include <numbers>

#include "wick/ops/ops.h"

namespace wick {
namespace {

// f(time) of each of B times, f32 [B, 1, 1, 1].
template <class F>
Tensor of_times(const Tensor& times, Memory& memory, F f) {
  std::vector<float> values;
  for (int64_t i = 0; i < times.dim(0); ++i)
    values.push_back(
        float(f(is_float(times.dtype()) ? double(times.data<float>()[i]) : double(times.data<int64_t>()[i]))));
  return Tensor::of(values, {times.dim(0), 1, 1, 1}, memory);
}

// Rows [to, from] of the weights by which `from` pixels become `to` ones, as torch.nn.functional.interpolate has them
// (bilinear, align_corners false).
Tensor linear_resampling(int64_t from, int64_t to, Memory& memory) {
  std::vector<float> weights(size_t(to * from));
  for (int64_t i = 0; i < to; ++i) {
    const double place = std::max((double(i) + 0.5) * double(from) / double(to) - 0.5, 0.0);
    const int64_t low = std::min(int64_t(place), from - 1), high = std::min(low + 1, from - 1);
    const double share = place - double(low);
    weights[size_t(i * from + low)] += float(1 - share);
    weights[size_t(i * from + high)] += float(share);
  }
  return Tensor::of(weights, {to, from}, memory);
}

// [B, h, w, C] as [B, H, W, C].
Tensor upsampled(const Tensor& x, int64_t height, int64_t width) {
  const int64_t batch = x.dim(0), channels = x.dim(3);
  const Tensor high =
      matmul(linear_resampling(x.dim(1), height, x.memory()), reshape(x, {batch, x.dim(1), x.dim(2) * channels}));
  const Tensor wide =
      matmul(linear_resampling(x.dim(2), width, x.memory()), reshape(high, {batch * height, x.dim(2), channels}));
  return reshape(wide, {batch, height, width, channels});
}

// Noise on noise of other sizes, each smaller than the last by a factor from 2 to 4, divided by its deviation.
Tensor pyramid(Tensor noise, const NoiseOptions& options, Rng& rng) {
  const int64_t height = noise.dim(1), width = noise.dim(2);
  for (int64_t i = 0; i < options.pyramid_iterations; ++i) {
    const double shrunk = std::pow(2 + 2 * double(random_uniform({1}, rng).item()), double(i));
    const auto side = [&](int64_t whole) { return std::max(int64_t(double(whole) / shrunk), int64_t{1}); };
    const int64_t h = side(height), w = side(width);
    const Tensor coarse = random_normal({noise.dim(0), h, w, noise.dim(3)}, rng, noise.memory());
    noise = noise + upsampled(coarse, height, width) * float(std::pow(options.pyramid_discount, double(i)));
    if (h == 1 || w == 1) break;
  }
  const double count = double(noise.numel());
  const Tensor variance = mean(square(noise - mean(noise))) * float(count / (count - 1));
  return noise * rsqrt(variance);
}

// Its slope at 0 is 1 or -1.
Tensor magnitude(const Tensor& x) { return clamp(x, 0, std::numeric_limits<float>::infinity()) * 2.0f - x; }

// The noise offset of each channel: latents [B, H, W, C] to [B, 1, 1, C].
Tensor offset_of(const Tensor& latents, const NoiseOptions& options) {
  const int64_t batch = latents.dim(0), pixels = latents.dim(1) * latents.dim(2), channels = latents.dim(3);
  const Tensor mean = matmul(full({1, pixels}, 1 / float(pixels), DType::f32, latents.memory()),
                             reshape(cast(latents, DType::f32), {batch, pixels, channels}));
  const Tensor offset = magnitude(mean) * float(options.adaptive_offset) + float(options.offset);
  return reshape(clamp(offset, 0, std::numeric_limits<float>::infinity()), {batch, 1, 1, channels});
}

Tensor draw_noise(const Tensor& latents, const NoiseOptions& options, Rng& rng) {
  Memory& memory = latents.memory();
  Tensor noise = random_normal(latents.shape(), rng, memory);
  if (options.offset > 0) {
    const Tensor drawn = random_normal({latents.dim(0), 1, 1, latents.dim(3)}, rng, memory);
    noise =
        noise + (options.adaptive_offset == 0 ? drawn * float(options.offset) : drawn * offset_of(latents, options));
  }
  return options.pyramid_iterations > 0 ? pyramid(noise, options, rng) : noise;
}

// Of elements, f32.
Tensor error_of(const Tensor& prediction, const NamedTensors& batch, LossType type) {
  const Tensor difference = cast(prediction, DType::f32) - cast(batch[kTarget], DType::f32);
  if (type == LossType::l1) return magnitude(difference);
  if (type == LossType::l2) return square(difference);
  const Tensor& c = batch[kHuberC];
  const Tensor sum = square(difference) + square(c);
  const Tensor error = (sum * rsqrt(sum) - c) * 2.0f;
  return type == LossType::huber ? error * c : error;
}

Tensor joined(const std::vector<Tensor>& rows) { return rows.size() == 1 ? rows.front() : cat(rows, 0); }

}  // namespace

double Objective::weight(const Process& process, double time) const {
  double weight = 1;
  const double snr = process.snr(time);
  if (min_snr_gamma > 0) weight *= std::min(snr, min_snr_gamma) / (process.predicts_v() ? snr + 1 : snr);
  const double bounded = std::min(snr, 1000.0);
  if (debiased) weight *= process.predicts_v() ? 1 / (bounded + 1) : 1 / std::sqrt(bounded);
  if (v_like_noise) weight *= bounded / (bounded + 1);
  if (weighting == WeightingScheme::sigma_sqrt) weight /= time * time;
  if (weighting == WeightingScheme::sigma_squared) weight *= time * time;
  if (weighting == WeightingScheme::cosmap) weight *= 2 / (std::numbers::pi * (1 - 2 * time + 2 * time * time));
  return weight;
}

double Objective::huber_c_at(const Process& process, double time) const {
  switch (huber_schedule) {
    case HuberSchedule::constant:
      return huber_c * huber_scale;
    case HuberSchedule::exponential:
      return std::pow(huber_c, process.progress(time)) * huber_scale;
    case HuberSchedule::snr: {
      const double ratio = 1 + 1 / std::sqrt(process.snr(time));
      return (1 - huber_c) / (ratio * ratio) + huber_c;
    }
  }
  return huber_c;
}

namespace {

NamedTensors inputs(const Noised& at, const Batch& batch, const Tensor& weights) {
  NamedTensors all{{kNoisedLatents, at.sample}, {kTarget, at.target}, {kTimesteps, at.timestep}};
  if (weights) all.add(kLossWeights, weights);
  all.add(batch.conditioning);
  return all;
}

}  // namespace

NamedTensors noised(const Process& process, const Batch& batch, const Tensor& noise, const Tensor& times) {
  return inputs(process.noised(batch.latents, noise, times), batch, batch.weights);
}

NamedTensors noised(const Process& process, const Batch& batch, TrainRng& rng, const Objective& objective) {
  const Tensor& latents = batch.latents;
  std::vector<Tensor> all_times, noises, others;
  int64_t done = 0;
  rng.each_sample(batch.number, latents.dim(0), [&](int64_t count) {
    const Tensor samples = slice(latents, 0, done, done + count);
    const Shape shape = samples.shape();
    done += count;
    all_times.push_back(process.draw_times(shape, rng.timestep, objective.times));
    noises.push_back(draw_noise(samples, objective.noise, rng.noise));
    if (objective.noise.input_gamma > 0) others.push_back(random_normal(shape, rng.noise, latents.memory()));
  });
  const Tensor times = joined(all_times), noise = joined(noises);
  Noised at = process.noised(latents, noise, times);
  if (!others.empty())
    at.sample = process.noised(latents, noise + joined(others) * float(objective.noise.input_gamma), times).sample;
  Tensor weights = batch.weights;
  if (objective.weighs_times()) {
    const Tensor of = of_times(times, latents.memory(), [&](double time) { return objective.weight(process, time); });
    weights = weights ? weights * of : of;
  }
  NamedTensors all = inputs(at, batch, weights);
  if (objective.has_huber())
    all.add(kHuberC,
            of_times(times, latents.memory(), [&](double time) { return objective.huber_c_at(process, time); }));
  return all;
}

Tensor denoising_loss(const Diffusion& model, const NamedTensors& batch, LossType type) {
  const Tensor prediction = model.predict(batch[kNoisedLatents], batch[kTimesteps], model.encode_text(batch));
  if (type == LossType::l2 && !batch.has(kLossWeights)) return mse_loss(prediction, batch[kTarget]);
  const Tensor error = error_of(prediction, batch, type);
  return mean(batch.has(kLossWeights) ? error * batch[kLossWeights] : error);
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
