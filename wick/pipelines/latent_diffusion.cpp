#include "wick/pipelines/latent_diffusion.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "wick/backend/counting.h"
#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/nn/bitsandbytes.h"
#include "wick/nn/fp8.h"
#include "wick/nn/glob.h"
#include "wick/ops/ops.h"

namespace wick {

bool names_pipeline(const Checkpoint& model, std::string_view family) {
  return model.is_pipeline() && model.has_config() && model.config().text_or("_class_name", "").starts_with(family);
}

WeightsOptions LatentDiffusion::weights_options(DType dtype) const {
  return {.dtype = dtype, .deferred = true, .place = Residence::on(backend(), dtype)};
}

Weights LatentDiffusion::weights(const std::string& component, const WeightsOptions& options) const {
  return options_.outline ? Weights::outline(options) : Weights(source(component), options);
}

Scope LatentDiffusion::scope(const std::string& component) const {
  return Scope(weights(component, weights_options(options_.dtype)), component, options_.adapter);
}

Weights LatentDiffusion::open_denoiser() {
  WeightsOptions w = weights_options(options_.dtype);
  w.trainable = options_.trainable;
  if (const auto& q = options_.quantization) {
    w.unquantized = std::exchange(w.dtype, q->dtype);
    kept_by_.assign(q->keep.size(), false);
    w.quantizes = [this, keep = q->keep](const std::string& tensor) {
      if (!is_in_blocks(tensor)) return false;
      const std::string module = denoiser_ + "." + tensor.substr(0, tensor.rfind('.'));
      bool is_kept = false;
      for (size_t i = 0; i < keep.size(); ++i)
        if (is_targeted_by(keep[i], module)) kept_by_[i] = is_kept = true;
      return !is_kept;
    };
  }
  return weights(denoiser_, w);
}

void LatentDiffusion::check_kept() const {
  if (!options_.quantization) return;
  const std::vector<std::string>& keep = options_.quantization->keep;
  for (size_t i = 0; i < keep.size(); ++i)
    check(kept_by_[i], "--keep-precision: {} matches no matrix of the {}'s blocks, which alone are quantised",
          quote(keep[i]), denoiser_in_words());
  const auto [matrices, kept] = denoiser_weights_->quantized();
  check(keep.empty() || matrices + kept > 0,
        "--keep-precision: leaves no matrix of the {}'s blocks to be quantised; leave --quantize out, or keep fewer",
        denoiser_in_words());
}

std::vector<std::string> LatentDiffusion::remarks_on_tensors(TensorSource (*names)(const TensorSource&),
                                                             const std::function<void(const Scope&)>& build,
                                                             std::set<std::string> elsewhere) const {
  const Checkpoint component = model_.component(denoiser_);
  if (!component.has_weights()) return {};
  std::set<std::string> asked = std::move(elsewhere);
  const TensorSource stored = component.source();
  TensorSource shapes = names(watched(stored, asked));
  shapes.has_values = false;
  CountingBackend counting(device_kind("cpu"));
  build(Scope(Weights(shapes, {.place = Residence::on(counting, DType::f32)}), denoiser_));
  std::vector<std::string> unread;
  for (const std::string& name : stored.names())
    if (!asked.contains(name) && !goes_with_fp8(name) && !goes_with_bitsandbytes(name)) unread.push_back(name);
  if (unread.empty()) return {};
  return {fmt::format("{}: {} of no part of the {} that Wick knows, {} the first of them, {} left out.", stored.name,
                      count_of(unread.size(), "tensor"), denoiser_in_words(), quote(unread.front()),
                      unread.size() == 1 ? "is" : "are")};
}

std::set<std::string> matrices_in_blocks(const Checkpoint& component, TensorSource (*names)(const TensorSource&),
                                         bool (*is_in_blocks)(const std::string&),
                                         const std::function<void(const Scope&)>& build) {
  std::set<std::string> asked, found;
  const TensorSource stored = component.source();
  TensorSource shapes = names(watched(stored, asked));
  shapes.has_values = false;
  shapes.find = [&, find = shapes.find](const std::string& name, const Shape& wanted) {
    asked.clear();
    const std::optional<StoredTensor> tensor = find(name, wanted);
    if (tensor && wanted.rank() == 2 && is_in_blocks(name))
      for (const std::string& part : asked)
        if (const auto matrix = stored.find(part, {}); matrix && matrix->shape.rank() == 2)
          found.insert(stored.stored_name(part));
    return tensor;
  };
  CountingBackend counting(device_kind("cpu"));
  build(Scope(Weights(shapes, {.place = Residence::on(counting, DType::f32)}), "denoiser"));
  return found;
}

void LatentDiffusion::check_width(const std::string& component, const char* what, int64_t here, int64_t wanted) const {
  check(here == wanted, "{}: {} are {} wide, and {} wants {}", model_.component(component).name(), what, here,
        model_.component(denoiser_).name(), wanted);
}

FlowTransformerOptions LatentDiffusion::flow_options(bool vector_is_trained) const {
  const bool on_device = backend().computes_in(DType::bf16) == DType::bf16;
  return {.block_schedule = options_.block_schedule,
          .modulations_ahead = on_device && !options_.trainable && !vector_is_trained};
}

void LatentDiffusion::load(const DiffusionOptions& options, const DiffusionParts& parts) {
  options_ = options;
  const auto wanted = [&](DiffusionPart part) { return std::ranges::find(parts, part) != parts.end(); };
  if (wanted(DiffusionPart::text_encoders)) {
    if (!options.outline) read_tokenizers();  // their faults are found before weights are read
    load_text_encoders();
  }
  // The VAE of SDXL overflows in f16.
  const DType vae_dtype = options.dtype == DType::f16 ? DType::f32 : options.dtype;
  const auto load_vae = [&](auto& part) {
    const Weights vae = weights("vae", weights_options(vae_dtype));
    part.emplace(Scope(vae, "vae", options.adapter), vae_);
    vae.read_deferred();
  };
  if (wanted(DiffusionPart::vae_encoder)) load_vae(vae_encoder_);
  if (wanted(DiffusionPart::vae_decoder)) load_vae(vae_decoder_);
  if (!wanted(DiffusionPart::denoiser)) return;
  denoiser_weights_ = open_denoiser();
  if (const size_t count = options.block_schedule.streamed())
    options_.block_schedule.stream(denoiser_weights_->stream(
        count,
        [&](const Weights& shapes) {
          load_denoiser(Scope(shapes, denoiser_));
          drop_denoiser();
        },
        options_.block_schedule.masters(denoiser_)));
  load_denoiser(Scope(*denoiser_weights_, denoiser_, options.adapter));
  check_kept();
  if (options.adapter) options.adapter->check_complete();  // before the long work
  denoiser_weights_->read_deferred(std::exchange(options_.rehearse, {}));
  host_memory().trim();
}

void LatentDiffusion::drop_encoders() {
  vae_encoder_.reset();
  vae_decoder_.reset();
  drop_text_encoders();
  memory().trim();
}

LatentPosterior LatentDiffusion::encode(const Tensor& pictures) const {
  check(vae_encoder_.has_value(), "the model was loaded without its VAE encoder");
  const Gaussian posterior = (*vae_encoder_)(pictures);
  const float scale = vae_.scaling_factor, shift = vae_.shift_factor;
  return {.mean = affine(posterior.mean, scale, -shift * scale), .deviation = scale * exp(0.5f * posterior.logvar)};
}

Tensor LatentDiffusion::decode(const Tensor& latents) const {
  check(vae_decoder_.has_value(), "text to image: the model was loaded without its VAE decoder");
  return (*vae_decoder_)(affine(latents, 1 / vae_.scaling_factor, vae_.shift_factor));
}

}  // namespace wick
