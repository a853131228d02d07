#include "wick/pipelines/text_to_image.h"

#include <vector>

#include "wick/ops/ops.h"

namespace wick {

Shape latent_shape(const ImageRequest& request, const LatentSpace& space) {
  return {1, request.height / space.factor, request.width / space.factor, space.channels};
}

void TextToImage::check_side(const char* name, int64_t pixels, const LatentSpace& space) {
  constexpr int64_t kMaxSide = 16384;
  check_usage(pixels > 0 && pixels <= kMaxSide && pixels % space.side_step == 0,
              "{}: expected a multiple of {} up to {} pixels, found {}", name, space.side_step, kMaxSide, pixels);
}

Tensor TextToImage::noise(const ImageRequest& request) const {
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
                           .guidance = request.cfg};
  parts.add(model_.framing(std::vector<PictureFrame>(guided ? 2 : 1, frame)));
  return parts;
}

Tensor TextToImage::denoise(const ImageRequest& request, const Tensor& noise,
                            const std::function<void(int64_t)>& on_step) const {
  check_side("width", request.width, model_.latents());
  check_side("height", request.height, model_.latents());
  const bool guided = request.cfg != 1 && model_.takes_negative();
  const Shape batch{guided ? 2 : 1, noise.dim(1), noise.dim(2), noise.dim(3)};
  const NamedTensors parts = conditioning(request, guided);
  const Sampler sampler = model_.process().sampler(request.sampler, request.steps, noise.shape());
  Tensor x = noise * sampler.initial_scale;
  for (size_t i = 0; i < sampler.steps.size(); ++i) {
    const SamplerStep& step = sampler.steps[i];
    Tensor predicted = model_.predict(contiguous(expand(x * step.input_scale, batch)),
                                      full({batch[0]}, step.timestep, DType::f32, model_.memory()), parts);
    if (guided) {
      const Tensor negative = slice(predicted, 0, 0, 1), positive = slice(predicted, 0, 1, 2);
      predicted = negative + (positive - negative) * request.cfg;
    }
    x = x * step.keep + predicted * step.noise;
    if (on_step) on_step(int64_t(i) + 1);
  }
  return x;
}

Image TextToImage::operator()(const ImageRequest& request, const std::function<void(int64_t)>& on_step) const {
  const Tensor picture = decode(denoise(request, noise(request), on_step));
  return tensor_to_image(reshape(picture, {picture.dim(1), picture.dim(2), picture.dim(3)}));
}

}  // namespace wick
