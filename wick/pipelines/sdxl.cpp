// Stable Diffusion XL (Podell et al., 2023) as a Diffusion: two CLIP text encoders, a UNet and a VAE.
//
// Parts of its conditioning, f32 but for the ids:
//   "text states"        [B, 77 n, hidden + hidden_2]: the encoders' penultimate states side by side, of n chunks
//   "pooled text"        [B, projection]
//   "tokens", "tokens 2" [B, 77] i64 on the host, in place of the two where the text encoders are trained
//                        [B, n, 77] in n chunks; with ReadingOptions::clip_chunks the states are [B, 75 n + 2, ...]
//   "weights"            [B, n, 77] f32 on the host, with tokens [B, n, 77] in n chunks, if some token's is not 1
//   "keys and values N"  [B, 77 n, 2 C], in place of the text states: those of the N-th cross-attention
//   "sizes"              [B, 6]: original height and width, crop top and left, target height and width
#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "wick/models/sdxl/config.h"
#include "wick/models/sdxl/names.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/clip_texts.h"
#include "wick/pipelines/latent_diffusion.h"
#include "wick/pipelines/model_defaults.h"
#include "wick/pipelines/noise_schedule.h"

namespace wick {
namespace {

constexpr const char *kStates = "text states", *kPooled = "pooled text", *kTokens = "tokens", *kTokens2 = "tokens 2",
                     *kWeights = "weights", *kSizes = "sizes", *kKeysValues = "keys and values ";

// Empty tensors of single files, of which the noise schedule reads what the model was trained on.
const std::set<std::string> kMarkers = {"v_pred", "ztsnr"};

TensorSource unet_source(const Checkpoint& model) { return sdxl_source(model.component("unet").source()); }

// The square pictures that the model was made for, in pixels of the latent.
int64_t sample_size(const Checkpoint& unet) {
  constexpr int64_t kUsual = 128;
  return unet.has_config() ? unet.config().integer_or("sample_size", kUsual, {1, 2048}) : kUsual;
}

// Is no negative text zeros, unlike the encoders' states for an empty one?
bool zeros_for_none(const Checkpoint& model) {
  return !model.has_config() || model.config().boolean_or("force_zeros_for_empty_prompt", true);
}

Component unet_component(std::vector<std::string> lora_prefixes) {
  const auto load = [](const ComponentSource& source) -> ComponentRun {
    const UNetConfig config = UNetConfig::read(source.model);
    const SdxlUNet model(source.scope("unet", unet_source(source.model)), config);
    return [=](ComponentInputs& in) -> ComponentOutputs {
      UNetInput x;
      x.sample = to_channels_last(in.variable("sample", {"B", config.in_channels, "h", "w"}));
      x.timestep = in.number("timestep", in.extent("B"));
      x.context = in.variable("encoder_hidden_states", {"B", "T", config.cross_attention_dim});
      x.text_embeds = in.variable("text_embeds", {"B", config.added_dim - kTimeIds * config.time_ids_dim});
      x.time_ids = in.constant("time_ids", {"B", kTimeIds});
      const Tensor sample = to_channels_first(model(x));
      return {{{"sample", sample}}, squared_error(sample)};
    };
  };
  return {"unet", load, std::move(lora_prefixes)};
}

bool belongs_to_block(const std::string& tensor) { return tensor.find(".transformer_blocks.") != tensor.npos; }

class Sdxl final : public LatentDiffusion {
 public:
  Sdxl(const Checkpoint& model, const ReadingOptions& options) : Sdxl(model, options, SdxlConfig::read(model)) {}
  Sdxl(const Checkpoint& model, const ReadingOptions& options, const SdxlConfig& config)
      : LatentDiffusion(model, "unet", config.vae),
        config_(config),
        clip_l_(model, ClipKind::l, options.syntax, options.clip_chunks),
        big_g_(model, ClipKind::big_g, options.syntax, options.clip_chunks),
        sample_size_(sample_size(model.component("unet"))),
        zeros_for_none_(zeros_for_none(model)),
        prediction_(options.prediction) {}

  LatentSpace latents() const override {
    const int64_t factor = config_.vae.factor();
    return {.channels = config_.vae.latent_channels,
            .factor = factor,
            .side_step = factor,
            .bucket_step = factor << (config_.unet.channels.size() - 1),
            .native = sample_size_ * factor};
  }

  const Process& process() const override { return schedule(); }

  DrawingDefaults drawing_defaults() const override {
    const DrawingDefaults& usual = defaults_of("sdxl").drawing;
    return process().is_distilled ? drawn_by(SamplerKind::lcm, usual) : usual;
  }

  LoraFormat lora() const override {
    return {.names = sdxl_module_names(config_.unet),
            .default_targets = sdxl_default_targets(),
            .conv_targets = sdxl_conv_targets(),
            .metadata = {{"ss_v2", "False"},
                         {"ss_base_model_version", "sdxl_base_v1-0"},
                         {"ss_network_module", "networks.lora"},
                         {"modelspec.architecture", "stable-diffusion-xl-v1-base/lora"},
                         {"modelspec.implementation", "https://github.com/Stability-AI/generative-models"},
                         {"ss_zero_terminal_snr", ends_without_signal() ? "True" : "False"},
                         {"modelspec.prediction_type", predicts_v() ? "v" : "epsilon"}}};
  }

  std::string denoiser_in_words() const override { return "UNet"; }
  std::vector<std::string> remarks() const override {
    return remarks_on_tensors(
        sdxl_source, [&](const Scope& s) { SdxlUNet(s, config_.unet); }, kMarkers);
  }

  TextLength length(const std::string& text) const override { return clip_l_.length(text); }
  void read_tokenizers() const override { clip_l_.tokenizer(), big_g_.tokenizer(); }

  NamedTensors caption(const std::string& text) const override;
  NamedTensors negative(const std::optional<std::string>& text) const override;
  NamedTensors framing(const std::vector<PictureFrame>& frames) const override;
  NamedTensors encode_text(const NamedTensors& parts) const override;

  NamedTensors joined(const std::vector<NamedTensors>& texts) const override;
  NamedTensors prepared(const NamedTensors& parts) const override;
  Tensor predict(const Tensor& x, const Tensor& timestep, const NamedTensors& parts) const override;

 private:
  void load_text_encoders() override;
  void drop_text_encoders() override;
  TensorSource source(const std::string& component) const override {
    return component == "unet" ? unet_source(model()) : LatentDiffusion::source(component);
  }
  bool is_in_blocks(const std::string& tensor) const override { return belongs_to_block(tensor); }
  void load_denoiser(const Scope& s) override { unet_.emplace(s, config_.unet, options().block_schedule); }
  void drop_denoiser() override { unet_.reset(); }

  const NoiseSchedule& schedule() const {
    if (!schedule_) schedule_.emplace(NoiseSchedule::read(model(), prediction_));
    return *schedule_;
  }
  bool predicts_v() const { return schedule().prediction == Prediction::v; }
  bool ends_without_signal() const { return schedule().alphas_cumprod().back() == 0; }
  bool trains_text() const { return options().adapter && options().adapter->covers("text_encoder"); }

  SdxlConfig config_;
  ClipTexts clip_l_, big_g_;
  int64_t sample_size_;
  bool zeros_for_none_;
  PredictionSetting prediction_;
  mutable std::optional<NoiseSchedule> schedule_;
  std::optional<SdxlUNet> unet_;
};

void Sdxl::load_text_encoders() {
  clip_l_.load(scope("text_encoder"));
  big_g_.load(scope("text_encoder_2"));
}

void Sdxl::drop_text_encoders() {
  if (trains_text()) return;
  clip_l_.drop();
  big_g_.drop();
}

NamedTensors Sdxl::caption(const std::string& text) const {
  const ClipIds l = clip_l_.ids(text);
  NamedTensors parts{{kTokens, l.ids}, {kTokens2, big_g_.ids(text).ids}};
  if (l.weights) parts.add(kWeights, l.weights);
  return trains_text() ? parts : encode_text(parts);
}

NamedTensors Sdxl::negative(const std::optional<std::string>& text) const {
  if (text || !zeros_for_none_) return caption(text.value_or(""));
  return {{kStates, zeros({1, clip_l_.plain_length(), config_.unet.cross_attention_dim}, DType::f32, memory())},
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
  const Tensor weights = parts.has(kWeights) ? parts[kWeights] : Tensor();
  const ClipStates l = clip_l_({parts[kTokens], weights}), g = big_g_({parts[kTokens2], weights});
  NamedTensors encoded{{kStates, cat({l.states, g.states}, 2)}, {kPooled, g.pooled}};
  if (parts.has(kSizes)) encoded.add(kSizes, parts[kSizes]);
  return encoded;
}

// Cross-attention does not see whether all of its keys stand there twice: each text is repeated to the least common
// multiple of their lengths.
NamedTensors Sdxl::joined(const std::vector<NamedTensors>& texts) const {
  int64_t length = 1;
  for (const NamedTensors& text : texts) length = std::lcm(length, text[kStates].dim(1));
  std::vector<NamedTensors> alike;
  for (const NamedTensors& text : texts) {
    NamedTensors& repeated = alike.emplace_back();
    for (const auto& [name, value] : text)
      repeated.add(name, name == kStates && value.dim(1) < length
                             ? cat(std::vector<Tensor>(size_t(length / value.dim(1)), value), 1)
                             : value);
  }
  return Diffusion::joined(alike);
}

NamedTensors Sdxl::prepared(const NamedTensors& parts) const {
  if (options().block_schedule.streamed() > 0)
    return parts;  // what makes keys and values comes with each step's blocks
  NamedTensors all;
  for (const auto& [name, value] : parts)
    if (name != kStates) all.add(name, value);
  const std::vector<Tensor> keys_values = unet_->keys_values(parts[kStates]);
  for (size_t i = 0; i < keys_values.size(); ++i) all.add(kKeysValues + std::to_string(i), keys_values[i]);
  return all;
}

Tensor Sdxl::predict(const Tensor& x, const Tensor& timestep, const NamedTensors& parts) const {
  UNetInput in{.sample = x, .timestep = timestep, .text_embeds = parts[kPooled], .time_ids = parts[kSizes]};
  if (parts.has(kStates)) in.context = parts[kStates];
  for (const auto& [name, value] : parts)
    if (name.starts_with(kKeysValues)) in.keys_values.push_back(value);
  return (*unet_)(in);
}

std::set<std::string> in_blocks(const Checkpoint& model) {
  return matrices_in_blocks(model.component("unet"), sdxl_source, belongs_to_block,
                            [&](const Scope& s) { SdxlUNet(s, UNetConfig::read(model)); });
}

}  // namespace

DiffusionFamily sdxl_family() {
  std::map<std::string, std::vector<std::string>> prefixes = sdxl_lora_prefixes();
  return {
      .is_here = [](const Checkpoint& m) { return m.has("unet") || names_pipeline(m, "StableDiffusionXL"); },
      .open = [](const Checkpoint& model, const ReadingOptions& options) -> std::unique_ptr<Diffusion> {
        return std::make_unique<Sdxl>(model, options);
      },
      .module_names = [](const Checkpoint& model) { return sdxl_module_names(UNetConfig::read(model)); },
      .denoiser = "unet",
      .in_blocks = in_blocks,
      .components = {clip_component("text_encoder", prefixes["text_encoder"], ClipKind::l),
                     clip_component("text_encoder_2", prefixes["text_encoder_2"], ClipKind::big_g),
                     vae_encoder_component(), vae_decoder_component(), unet_component(prefixes["unet"]),
                     clip_tokenizer_component("tokenizer", "clip"), clip_tokenizer_component("tokenizer_2", "clip_g")},
      .known = {{"tiny"}, {"sdxl", "stabilityai/stable-diffusion-xl-base-1.0", "SDXL", sdxl_configs()}}};
}

}  // namespace wick
