#include "wick/pipelines/text_to_image.h"

#include <cmath>
#include <vector>

#include "wick/ops/ops.h"

namespace wick {

namespace {

double deviation(const Tensor& x) {
  const std::vector<float> values = x.to_vector();
  double sum = 0, squares = 0;
  for (const float value : values) sum += value;
  const double mean = sum / double(values.size());
  for (const float value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / double(values.size()));
}

}  // namespace

Shape latent_shape(const ImageRequest& request, const LatentSpace& space) {
  return {1, request.height / space.factor, request.width / space.factor, space.channels};
}

void TextToImage::check_side(const char* name, int64_t pixels, const LatentSpace& space) {
  check_usage(pixels > 0 && pixels <= space.largest && pixels % space.side_step == 0,
              "{}: expected a multiple of {} up to {} pixels, found {}", name, space.side_step, space.largest, pixels);
}

Tensor TextToImage::noise(const ImageRequest& request) const {
  if (request.start) return request.start.to(model_.memory());
  Rng rng(request.seed, Stream::sampler);
  return random_normal(latent_shape(request, model_.latents()), rng).to(model_.memory());
}

// With guidance both passes are one batch, the negative first. The model is asked for an uncropped picture.
NamedTensors TextToImage::conditioning(const ImageRequest& request, bool guided) const {
  NamedTensors parts = model_.encode_text(model_.caption(request.prompt));
  if (guided) {
    const NamedTensors negative = model_.encode_text(model_.negative(request.negative));
    NamedTensors both;
    for (const auto& [name, value] : parts) both.add(name, cat({negative[name], value}, 0));
    parts = both;
  }
  const PictureFrame frame{.height = request.height,
                           .width = request.width,
                           .target_height = request.height,
                           .target_width = request.width,
                           .guidance = request.guidance};
  parts.add(model_.framing(std::vector<PictureFrame>(guided ? 2 : 1, frame)));
  return parts;
}

Tensor TextToImage::denoise(const ImageRequest& request, const Tensor& noise,
                            const std::function<void(int64_t)>& on_step) const {
  check_side("width", request.width, model_.latents());
  check_side("height", request.height, model_.latents());
  const int64_t rows = request.cfg != 1 ? 2 : 1;
  const NamedTensors parts = conditioning(request, rows == 2);
  const Sampler sampler = model_.process().sampler(request.sampling, noise.shape());
  const auto steps = int64_t(sampler.steps.size());
  const NamedTensors ahead = parts_ahead(sampler, parts);
  Tensor x = noise * sampler.initial_scale, denoised;
  for (int64_t i = 0; i < steps; ++i) {
    const SamplerStep& step = sampler.steps[size_t(i)];
    const bool skips = request.skip.applies(i, steps);
    NamedTensors of_step = parts;
    for (const auto& [name, value] : ahead)
      of_step.add(name, slice(value, 0, i * rows, (i + 1) * rows).to(model_.memory()));
    const Tensor predicted = predict(request, x * step.input_scale, step.timestep, of_step, skips);
    const Tensor last = denoised;
    if (sampler.multistep) denoised = x * float(step.estimate.keep) + predicted * float(step.estimate.prediction);
    x = x * step.keep + predicted * step.noise;
    if (step.previous != 0) x = x + last * step.previous;
    if (on_step) on_step(i + 1);
  }
  return x;
}

// Rows for each step, as many as a batch has.
NamedTensors TextToImage::parts_ahead(const Sampler& sampler, const NamedTensors& parts) const {
  const std::vector<std::string> names = model_.parts_ahead();
  if (names.empty()) return {};
  const auto steps = int64_t(sampler.steps.size()), rows = parts[names.front()].dim(0);
  std::vector<float> timesteps;
  for (const SamplerStep& step : sampler.steps) timesteps.insert(timesteps.end(), size_t(rows), step.timestep);
  NamedTensors repeated;
  for (const std::string& name : names) repeated.add(name, cat(std::vector<Tensor>(size_t(steps), parts[name]), 0));
  return model_.ahead(Tensor::of(timesteps, {steps * rows}, model_.memory()), repeated);
}

// With guidance of both kinds.
Tensor TextToImage::predict(const ImageRequest& request, const Tensor& x, float timestep, const NamedTensors& parts,
                            bool skips) const {
  const auto times = [&](int64_t rows) { return full({rows}, timestep, DType::f32, model_.memory()); };
  const int64_t rows = request.cfg != 1 ? 2 : 1;
  const Tensor both = model_.predict(contiguous(expand(x, {rows, x.dim(1), x.dim(2), x.dim(3)})), times(rows), parts);
  const Tensor positive = slice(both, 0, rows - 1, rows), negative = slice(both, 0, 0, 1);
  Tensor predicted = rows == 2 ? negative + (positive - negative) * request.cfg : positive;
  if (rows == 2 && request.cfg_rescale != 0) {
    const double ratio = deviation(positive) / deviation(predicted);
    predicted = predicted * float(std::lerp(1.0, ratio, double(request.cfg_rescale)));
  }
  if (!skips) return predicted;
  NamedTensors alone;
  for (const auto& [name, value] : parts) alone.add(name, slice(value, 0, rows - 1, rows));
  const Tensor without = model_.predict_without(request.skip.layers, x, times(1), alone);
  return predicted + (positive - without) * request.skip.scale;
}

Image TextToImage::operator()(const ImageRequest& request, const std::function<void(int64_t)>& on_step) const {
  const Tensor picture = decode(denoise(request, noise(request), on_step));
  return tensor_to_image(reshape(picture, {picture.dim(1), picture.dim(2), picture.dim(3)}));
}

}  // namespace wick
