#include "wick/pipelines/text_to_image.h"

#include "wick/io/config.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

Tensor ids_of(const ClipTokenizer& tokenizer, const std::string& text) {
  const std::vector<int64_t> ids = tokenizer.encode(text);
  return Tensor::of(ids, {1, int64_t(ids.size())});
}

// Original size, crop and target size: the model is asked for an uncropped picture of the size requested.
Tensor time_ids(const ImageRequest& request, int64_t batch) {
  const float height = float(request.height), width = float(request.width);
  return expand(Tensor::of(std::vector<float>{height, width, 0, 0, height, width}, {1, 6}), {batch, 6});
}

}  // namespace

TextToImage::TextToImage(const Sdxl& sdxl, const std::filesystem::path& folder)
    : sdxl_(sdxl),
      schedule_(NoiseSchedule::read(folder / "scheduler")),
      tokenizer_(ClipTokenizer::load(folder / "tokenizer")),
      tokenizer_2_(ClipTokenizer::load(folder / "tokenizer_2")),
      zeros_for_no_negative_(
          Config::read(folder / "model_index.json").boolean_or("force_zeros_for_empty_prompt", true)) {
  check(sdxl.vae_decoder != nullptr, "text to image: the model was loaded without its VAE decoder");
}

void TextToImage::check_side(const char* name, int64_t pixels, const VaeConfig& vae) {
  constexpr int64_t kMaxSide = 16384;
  check_usage(pixels > 0 && pixels <= kMaxSide && pixels % vae.factor() == 0,
              "{}: expected a multiple of {} up to {} pixels, found {}", name, vae.factor(), kMaxSide, pixels);
}

int64_t TextToImage::native_size(const std::filesystem::path& folder) {
  const int64_t side = Config::read(folder / "unet/config.json").integer_or("sample_size", 128, {1, 2048});
  return side * VaeConfig::read(folder / "vae").factor();
}

TextConditioning TextToImage::encode(const std::string& text) const {
  return sdxl_.encode_text(ids_of(tokenizer_, text), ids_of(tokenizer_2_, text));
}

TextConditioning TextToImage::encode_negative(const ImageRequest& request, const TextConditioning& positive) const {
  if (!request.negative && zeros_for_no_negative_)
    return {zeros(positive.context.shape(), DType::f32, sdxl_.memory),
            zeros(positive.pooled.shape(), DType::f32, sdxl_.memory)};
  return encode(request.negative.value_or(""));
}

Tensor TextToImage::noise(const ImageRequest& request) const {
  const int64_t factor = sdxl_.config.vae.factor();
  Rng rng(request.seed, Stream::sampler);
  return random_normal({1, request.height / factor, request.width / factor, sdxl_.config.vae.latent_channels}, rng)
      .to(sdxl_.memory);
}

Tensor TextToImage::denoise(const ImageRequest& request, const Tensor& noise,
                            const std::function<void(int64_t)>& on_step) const {
  check_side("width", request.width, sdxl_.config.vae);
  check_side("height", request.height, sdxl_.config.vae);
  const bool guided = request.cfg != 1;
  const int64_t batch = guided ? 2 : 1;
  TextConditioning text = encode(request.prompt);
  if (guided) {  // both passes as one batch, the negative first
    const TextConditioning negative = encode_negative(request, text);
    text = {cat({negative.context, text.context}, 0), cat({negative.pooled, text.pooled}, 0)};
  }

  const Sampler sampler = make_sampler(request.sampler, schedule_, request.steps);
  const Shape twice{batch, noise.dim(1), noise.dim(2), noise.dim(3)};
  const Tensor sizes = contiguous(time_ids(request, batch)).to(sdxl_.memory);
  Tensor x = noise * sampler.initial_scale;
  for (size_t i = 0; i < sampler.steps.size(); ++i) {
    const SamplerStep& step = sampler.steps[i];
    const Tensor predicted = (*sdxl_.unet)({.sample = contiguous(expand(x * step.input_scale, twice)),
                                            .timestep = full({batch}, step.timestep, DType::f32, sdxl_.memory),
                                            .context = text.context,
                                            .text_embeds = text.pooled,
                                            .time_ids = sizes});
    Tensor epsilon = predicted;
    if (guided) {
      const Tensor negative = slice(predicted, 0, 0, 1), positive = slice(predicted, 0, 1, 2);
      epsilon = negative + (positive - negative) * request.cfg;
    }
    x = x * step.keep + epsilon * step.noise;
    if (on_step) on_step(int64_t(i) + 1);
  }
  return x;
}

Tensor TextToImage::decode(const Tensor& latents) const {
  const VaeConfig& vae = sdxl_.config.vae;
  return (*sdxl_.vae_decoder)(affine(latents, 1 / vae.scaling_factor, vae.shift_factor));
}

Image TextToImage::operator()(const ImageRequest& request, const std::function<void(int64_t)>& on_step) const {
  const Tensor picture = decode(denoise(request, noise(request), on_step));
  return tensor_to_image(reshape(picture, {picture.dim(1), picture.dim(2), picture.dim(3)}));
}

}  // namespace wick
