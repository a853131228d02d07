// Stable Diffusion XL (Podell et al., 2023) as a Diffusion: two CLIP text encoders, a UNet and a VAE.
//
// Parts of its conditioning, f32 but for the ids:
//   "text states"        [B, 77, hidden + hidden_2]: the encoders' penultimate states side by side
//   "pooled text"        [B, projection]
//   "tokens", "tokens 2" [B, 77] i64 on the host, in place of the two where the text encoders are trained
//   "sizes"              [B, 6]: original height and width, crop top and left, target height and width
#include <algorithm>
#include <utility>

#include "wick/models/sdxl/config.h"
#include "wick/models/sdxl/names.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/diffusion.h"
#include "wick/pipelines/noise_schedule.h"
#include "wick/text/clip_tokenizer.h"

namespace wick {
namespace {

constexpr const char *kStates = "text states", *kPooled = "pooled text", *kTokens = "tokens", *kTokens2 = "tokens 2",
                     *kSizes = "sizes";

Component unet_component(std::vector<std::string> lora_prefixes) {
  const auto load = [](const ComponentSource& source) -> ComponentRun {
    const UNetConfig config = UNetConfig::read(source.model.component("unet"));
    const SdxlUNet model(source.scope("unet"), config);
    return [=](ComponentInputs& in) -> ComponentOutputs {
      UNetInput x;
      x.sample = to_channels_last(in.variable("sample", {"B", config.in_channels, "h", "w"}));
      x.timestep = in.timestep(in.extent("B"));
      x.context = in.variable("encoder_hidden_states", {"B", "T", config.cross_attention_dim});
      x.text_embeds = in.variable("text_embeds", {"B", config.added_dim - kTimeIds * config.time_ids_dim});
      x.time_ids = in.constant("time_ids", {"B", kTimeIds});
      const Tensor sample = to_channels_first(model(x));
      return {{{"sample", sample}}, squared_error(sample)};
    };
  };
  return {"unet", load, std::move(lora_prefixes)};
}

class Sdxl final : public Diffusion {
 public:
  explicit Sdxl(const Checkpoint& model)
      : model_(model),
        config_(SdxlConfig::read(model)),
        sample_size_(model.component("unet").config().integer_or("sample_size", 128, {1, 2048})),
        zeros_for_none_(model.config().boolean_or("force_zeros_for_empty_prompt", true)) {}

  LatentSpace latents() const override {
    const int64_t factor = config_.vae.factor();
    return {.channels = config_.vae.latent_channels,
            .factor = factor,
            .side_step = factor,
            .bucket_step = factor << (config_.unet.channels.size() - 1),
            .native = sample_size_ * factor};
  }

  const Process& process() const override {
    if (!schedule_) schedule_.emplace(NoiseSchedule::read(model_));
    return *schedule_;
  }

  DrawingDefaults drawing_defaults() const override { return {.steps = 30, .cfg = 5}; }

  LoraFormat lora() const override {
    return {.names = sdxl_module_names(config_.unet),
            .default_targets = sdxl_default_targets(),
            .metadata = {{"ss_v2", "False"},
                         {"ss_base_model_version", "sdxl_base_v1-0"},
                         {"ss_network_module", "networks.lora"},
                         {"modelspec.architecture", "stable-diffusion-xl-v1-base/lora"},
                         {"modelspec.implementation", "https://github.com/Stability-AI/generative-models"},
                         {"modelspec.prediction_type", "epsilon"}}};
  }

  std::string denoiser() const override { return "unet"; }
  std::string denoiser_in_words() const override { return "UNet"; }

  TextLength length(const std::string& text) const override {
    const ClipTokenizer& tokenizer = tokenizers().first;
    return {.tokens = tokenizer.length(text) - 2, .limit = tokenizer.max_length() - 2};
  }

  void load(const DiffusionOptions& options, const DiffusionParts& parts) override;
  void drop_encoders() override;
  const Weights& denoiser_weights() const override { return *unet_weights_; }
  Memory& memory() const override { return backend().memory(); }

  LatentPosterior encode(const Tensor& pictures) const override {
    check(vae_encoder_ != nullptr, "the model was loaded without its VAE encoder");
    const Gaussian posterior = (*vae_encoder_)(pictures);
    const float scale = config_.vae.scaling_factor, shift = config_.vae.shift_factor;
    return {.mean = affine(posterior.mean, scale, -shift * scale), .deviation = scale * exp(0.5f * posterior.logvar)};
  }

  Tensor decode(const Tensor& latents) const override {
    check(vae_decoder_ != nullptr, "text to image: the model was loaded without its VAE decoder");
    return (*vae_decoder_)(affine(latents, 1 / config_.vae.scaling_factor, config_.vae.shift_factor));
  }

  NamedTensors caption(const std::string& text) const override {
    const NamedTensors ids{{kTokens, ids_of(text, &Tokenizers::first)}, {kTokens2, ids_of(text, &Tokenizers::second)}};
    return trains_text() ? ids : encode_text(ids);
  }

  NamedTensors negative(const std::optional<std::string>& text) const override;
  NamedTensors framing(const std::vector<PictureFrame>& frames) const override;
  NamedTensors encode_text(const NamedTensors& parts) const override;

  Tensor predict(const Tensor& x, const Tensor& timestep, const NamedTensors& parts) const override {
    return (*unet_)({.sample = x,
                     .timestep = timestep,
                     .context = parts[kStates],
                     .text_embeds = parts[kPooled],
                     .time_ids = parts[kSizes]});
  }

 private:
  struct Tokenizers {
    ClipTokenizer first, second;
  };

  const Tokenizers& tokenizers() const {
    if (!tokenizers_)
      tokenizers_ = {ClipTokenizer::load(model_.component("tokenizer").path()),
                     ClipTokenizer::load(model_.component("tokenizer_2").path())};
    return *tokenizers_;
  }

  // [1, T]; of an outline, for which no tokenizer is read, zeros.
  Tensor ids_of(const std::string& text, ClipTokenizer Tokenizers::*which) const {
    const std::vector<int64_t> ids = options_.outline ? std::vector<int64_t>(size_t(config_.text_encoder.positions))
                                                      : (tokenizers().*which).encode(text);
    return Tensor::of(ids, {1, int64_t(ids.size())});
  }

  bool trains_text() const { return options_.adapter && options_.adapter->covers("text_encoder"); }
  Backend& backend() const { return options_.backend ? *options_.backend : cpu_backend(); }
  Weights weights(const std::string& component, DType dtype, bool trainable = false) const;

  Checkpoint model_;
  SdxlConfig config_;
  int64_t sample_size_;
  bool zeros_for_none_;  // no negative is zeros, unlike the encoders' states for an empty text
  DiffusionOptions options_;
  mutable std::optional<NoiseSchedule> schedule_;
  mutable std::optional<Tokenizers> tokenizers_;
  std::unique_ptr<ClipText> text_encoder_, text_encoder_2_;
  std::unique_ptr<VaeEncoder> vae_encoder_;
  std::unique_ptr<VaeDecoder> vae_decoder_;
  std::optional<Weights> unet_weights_;
  std::unique_ptr<SdxlUNet> unet_;
};

Weights Sdxl::weights(const std::string& component, DType dtype, bool trainable) const {
  const WeightsOptions w{.dtype = dtype, .trainable = trainable, .place = Residence::on(backend(), dtype)};
  return options_.outline ? Weights::outline(w) : model_.component(component).weights(w);
}

void Sdxl::load(const DiffusionOptions& options, const DiffusionParts& parts) {
  options_ = options;
  const auto wanted = [&](DiffusionPart part) { return std::ranges::find(parts, part) != parts.end(); };
  const auto scope = [&](const char* component, DType dtype) {
    return Scope(weights(component, dtype), component, options.adapter);
  };
  // The VAE of SDXL overflows in f16.
  const DType vae_dtype = options.dtype == DType::f16 ? DType::f32 : options.dtype;
  if (wanted(DiffusionPart::text_encoders)) {
    if (!options.outline) tokenizers();  // their faults are found before weights are read
    text_encoder_ = std::make_unique<ClipText>(scope("text_encoder", options.dtype), config_.text_encoder);
    text_encoder_2_ = std::make_unique<ClipText>(scope("text_encoder_2", options.dtype), config_.text_encoder_2);
  }
  if (wanted(DiffusionPart::vae_encoder))
    vae_encoder_ = std::make_unique<VaeEncoder>(scope("vae", vae_dtype), config_.vae);
  if (wanted(DiffusionPart::vae_decoder))
    vae_decoder_ = std::make_unique<VaeDecoder>(scope("vae", vae_dtype), config_.vae);
  if (!wanted(DiffusionPart::denoiser)) return;
  unet_weights_ = weights("unet", options.dtype, options.trainable);
  unet_ =
      std::make_unique<SdxlUNet>(Scope(*unet_weights_, "unet", options.adapter), config_.unet, options.checkpointing);
  if (options.adapter) options.adapter->check_complete();
  host_memory().trim();
}

void Sdxl::drop_encoders() {
  vae_encoder_.reset();
  vae_decoder_.reset();
  if (!trains_text()) {
    text_encoder_.reset();
    text_encoder_2_.reset();
  }
  memory().trim();
}

NamedTensors Sdxl::negative(const std::optional<std::string>& text) const {
  if (text || !zeros_for_none_) return caption(text.value_or(""));
  const int64_t length = ids_of("", &Tokenizers::first).dim(1);
  return {{kStates, zeros({1, length, config_.unet.cross_attention_dim}, DType::f32, memory())},
          {kPooled, zeros({1, config_.text_encoder_2.projection}, DType::f32, memory())}};
}

NamedTensors Sdxl::framing(const std::vector<PictureFrame>& frames) const {
  std::vector<float> sizes;
  for (const PictureFrame& f : frames)
    for (const int64_t number : {f.height, f.width, f.crop_top, f.crop_left, f.target_height, f.target_width})
      sizes.push_back(float(number));
  return {{kSizes, Tensor::of(sizes, {int64_t(frames.size()), kTimeIds}, memory())}};
}

NamedTensors Sdxl::encode_text(const NamedTensors& parts) const {
  if (!parts.has(kTokens)) return parts;
  check(text_encoder_ && text_encoder_2_, "encode_text: the model's text encoders were dropped");
  const ClipOutput first = (*text_encoder_)(parts[kTokens]), second = (*text_encoder_2_)(parts[kTokens2]);
  NamedTensors encoded{{kStates, cat({first.penultimate, second.penultimate}, 2)}, {kPooled, second.pooled}};
  if (parts.has(kSizes)) encoded.add(kSizes, parts[kSizes]);
  return encoded;
}

}  // namespace

DiffusionFamily sdxl_family() {
  std::map<std::string, std::vector<std::string>> prefixes = sdxl_lora_prefixes();
  return {.is_here = [](const Checkpoint& model) { return model.has("unet"); },
          .open = [](const Checkpoint& model) -> std::unique_ptr<Diffusion> { return std::make_unique<Sdxl>(model); },
          .components = {clip_component("text_encoder", prefixes["text_encoder"], ClipKind::l),
                         clip_component("text_encoder_2", prefixes["text_encoder_2"], ClipKind::big_g),
                         vae_encoder_component(), vae_decoder_component(), unet_component(prefixes["unet"])},
          .known = {{"tiny"}, {"sdxl", "stabilityai/stable-diffusion-xl-base-1.0"}}};
}

}  // namespace wick
