// FLUX.1 (Black Forest Labs, 2024) as a Diffusion: CLIP-L, T5, a transformer and a VAE of 16 channels.
//
// Parts of its conditioning, beside those of T5 (t5_texts.h):
//   "pooled text" [B, 768] f32, of CLIP
//   "tokens"      [B, 77] i64 on the host, in its place where CLIP is trained; [B, n, 77] in n chunks, of which the
//                 first counts
//   "guidance"    [B] f32, for a model that is told it
//   "modulations" [B, ...], where they are made ahead
#include <algorithm>
#include <utility>

#include "wick/models/flux/names.h"
#include "wick/models/flux/transformer.h"
#include "wick/nn/recognise.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/clip_texts.h"
#include "wick/pipelines/latent_diffusion.h"
#include "wick/pipelines/model_defaults.h"
#include "wick/pipelines/rectified_flow.h"
#include "wick/pipelines/t5_texts.h"

namespace wick {
namespace {

constexpr const char *kPooled = "pooled text", *kTokens = "tokens", *kGuidance = "guidance",
                     *kModulations = "modulations";
constexpr const char *kTransformer = "transformer", *kClip = "text_encoder", *kT5 = "text_encoder_2";
constexpr LatentScale kLatents{0.3611f, 0.1159f};
constexpr const char *kDevScheduler = R"({"use_dynamic_shifting": true})", *kSchnellScheduler = R"({"shift": 1})";

TensorSource transformer_source(const Checkpoint& model) { return flux_source(model.component(kTransformer).source()); }

Component transformer_component(std::vector<std::string> lora_prefixes) {
  const auto load = [](const ComponentSource& source) -> ComponentRun {
    const FluxConfig config = FluxConfig::read(source.model.component(kTransformer));
    const FluxTransformer model(source.scope(kTransformer, transformer_source(source.model)), config);
    return [=](ComponentInputs& in) -> ComponentOutputs {
      FluxInput x;
      x.tokens = in.variable("hidden_states", {"B", "N", config.token_dim()});
      x.text = in.variable("encoder_hidden_states", {"B", "L", config.text_dim});
      x.pooled = in.variable("pooled_projections", {"B", config.pooled_dim});
      x.timestep = in.number("timestep", in.extent("B"), {0, 1}) * 1000.0f;
      if (config.guidance)
        x.guidance = in.number("guidance", in.extent("B"));
      else
        in.refuse("guidance", "this model is not told its guidance");
      FluxPlaces places;
      for (const auto& [name, count] : {std::pair{"txt_ids", "L"}, {"img_ids", "N"}}) {
        const std::vector<float> ids = in.constant(name, {count, 3}).to_vector();
        for (size_t i = 0; i < ids.size(); i += 3) places.push_back({ids[i], ids[i + 1], ids[i + 2]});
      }
      x.rotary = flux_rotary(places, config, x.tokens.memory());
      const Tensor sample = model(x);
      return {{{"sample", sample}}, squared_error(sample)};
    };
  };
  return {kTransformer, load, std::move(lora_prefixes)};
}

bool belongs_to_block(const std::string& tensor) {
  const bool modulates = tensor.find("_mod.") != tensor.npos || tensor.find(".modulation.") != tensor.npos;
  return (tensor.starts_with("double_blocks.") || tensor.starts_with("single_blocks.")) && !modulates;
}

class Flux final : public LatentDiffusion {
 public:
  Flux(const Checkpoint& model, const ReadingOptions& options)
      : LatentDiffusion(model, kTransformer, VaeConfig::read(model.component("vae"), kLatents)),
        config_(FluxConfig::read(model.component(kTransformer))),
        clip_(model, ClipKind::l, options.syntax),
        t5_(model.component(kT5), tokenizer_path(model, "tokenizer_2", "t5"), options, defaults().t5_tokens) {
    check_fit();
  }

  LatentSpace latents() const override {
    const int64_t factor = vae().factor(), step = 2 * factor;  // a token is 2 x 2 latent pixels
    return {.channels = config_.channels, .factor = factor, .side_step = step, .bucket_step = step, .native = native()};
  }

  const Process& process() const override {
    if (!flow_)
      flow_.emplace(
          RectifiedFlow::read(model(), config_.guidance ? kDevScheduler : kSchnellScheduler, SigmaGrid::uniform));
    return *flow_;
  }

  DrawingDefaults drawing_defaults() const override { return defaults().drawing; }

  LoraFormat lora() const override {
    return {.names = flux_module_names(),
            .default_targets = flux_default_targets(config_.single_blocks),
            .metadata = {{"ss_v2", "False"},
                         {"ss_base_model_version", "flux1"},
                         {"ss_network_module", "networks.lora_flux"},
                         {"ss_model_type", "flux"},
                         {"modelspec.architecture", config_.guidance ? "flux-1-dev/lora" : "flux-1-schnell/lora"},
                         {"modelspec.implementation", "https://github.com/black-forest-labs/flux"}}};
  }

  std::string denoiser_in_words() const override { return "transformer"; }
  std::vector<std::string> remarks() const override;
  std::string training_remark() const override {
    if (config_.guidance) return {};
    return "schnell draws in 4 steps because it was distilled, which training undoes step by step: train on dev, and "
           "use the LoRA on schnell.";
  }
  int64_t t5_tokens() const override { return t5_.tokens(); }
  TextLength length(const std::string& text) const override { return t5_.length(text); }
  void read_tokenizers() const override { t5_.tokenizer(), clip_.tokenizer(); }

  NamedTensors caption(const std::string& text) const override;
  NamedTensors framing(const std::vector<PictureFrame>& frames) const override;
  NamedTensors encode_text(const NamedTensors& parts) const override;
  Tensor predict(const Tensor& x, const Tensor& timestep, const NamedTensors& parts) const override;
  std::vector<std::string> parts_ahead() const override;
  NamedTensors ahead(const Tensor& timesteps, const NamedTensors& parts) const override;

 private:
  void load_text_encoders() override;
  void drop_text_encoders() override;
  bool is_in_blocks(const std::string& tensor) const override { return belongs_to_block(tensor); }
  void load_denoiser(const Scope& s) override { transformer_.emplace(s, config_, flow_options(trains(kClip))); }
  void drop_denoiser() override { transformer_.reset(); }
  TensorSource source(const std::string& component) const override {
    return component == kTransformer ? transformer_source(model()) : LatentDiffusion::source(component);
  }

  const ModelDefaults& defaults() const { return defaults_of(config_.guidance ? "flux-dev" : "flux-schnell"); }
  void check_fit() const;
  int64_t native() const {
    const Checkpoint vae = model().component("vae");
    return vae.has_config() ? vae.config().integer_or("sample_size", 1024, {1, 16384}) : 1024;
  }
  int64_t sequence(int64_t height, int64_t width) const { return t5_.tokens() + height / 2 * (width / 2); }
  const Rotary& rotary(int64_t height, int64_t width) const;  // of a latent's size

  FluxConfig config_;
  ClipTexts clip_;
  T5Texts t5_;
  mutable std::optional<RectifiedFlow> flow_;
  mutable std::map<std::pair<int64_t, int64_t>, Rotary> rotaries_;
  std::optional<FluxTransformer> transformer_;
};

void Flux::check_fit() const {
  check_width(kT5, "T5's states", t5_.config().hidden, config_.text_dim);
  check_width(kClip, "CLIP's pooled states",
              clip_.config().with_projection ? clip_.config().projection : clip_.config().hidden, config_.pooled_dim);
  check_width("vae", "VAE's latents", vae().latent_channels, config_.channels);
}

std::vector<std::string> Flux::remarks() const {
  std::vector<std::string> all = remarks_on_tensors(flux_source, [&](const Scope& s) { FluxTransformer(s, config_); });
  if (names_pipeline(model(), "FluxKontextPipeline"))
    all.push_back(model().name() +
                  ": is FLUX.1 Kontext, to which Wick shows no reference picture: it is used as dev is.");
  return all;
}

void Flux::load_text_encoders() {
  t5_.load(scope(kT5), options());
  clip_.load(scope(kClip));
}

void Flux::drop_text_encoders() {
  if (!trains(kT5)) t5_.drop();
  if (!trains(kClip)) clip_.drop();
}

NamedTensors Flux::caption(const std::string& text) const {
  NamedTensors now, later;
  (trains(kClip) ? later : now).add(kTokens, clip_.ids(text).ids);
  const NamedTensors t5 = t5_.ids(text);
  (trains(kT5) ? later : now).add(t5);
  NamedTensors all = encode_text(now);
  all.add(t5_.text_mask(t5, memory()));
  all.add(later);
  return all;
}

NamedTensors Flux::encode_text(const NamedTensors& parts) const {
  NamedTensors encoded;
  for (const auto& [name, value] : parts) {
    if (name == kTokens) {
      encoded.add(kPooled, clip_({value}).pooled);
    } else if (name == T5Texts::kTokens) {
      encoded.add(T5Texts::kStates, t5_.states(parts));
    } else if (name != T5Texts::kWeights) {
      encoded.add(name, value);
    }
  }
  return encoded;
}

NamedTensors Flux::framing(const std::vector<PictureFrame>& frames) const {
  const auto count = int64_t(frames.size());
  const int64_t height = frames.front().target_height / vae().factor(),
                width = frames.front().target_width / vae().factor();
  rotary(height, width);
  if (!config_.guidance) return {};
  std::vector<float> guidance;
  for (const PictureFrame& frame : frames) guidance.push_back(frame.guidance);
  return {{kGuidance, Tensor::of(guidance, {count}, memory())}};
}

// Made outside of steps, which may be recorded.
const Rotary& Flux::rotary(int64_t height, int64_t width) const {
  const auto found = rotaries_.find({height, width});
  if (found != rotaries_.end()) return found->second;
  const Rotary made = flux_rotary(flux_places(t5_.tokens(), height, width), config_, memory());
  return rotaries_[{height, width}] = made;
}

std::vector<std::string> Flux::parts_ahead() const {
  if (!transformer_ || !transformer_->modulates_ahead()) return {};
  return config_.guidance ? std::vector<std::string>{kPooled, kGuidance} : std::vector<std::string>{kPooled};
}

NamedTensors Flux::ahead(const Tensor& timesteps, const NamedTensors& parts) const {
  return {{kModulations, transformer_->modulations({.timestep = timesteps,
                                                    .guidance = config_.guidance ? parts[kGuidance] : Tensor(),
                                                    .pooled = parts[kPooled]})}};
}

Tensor Flux::predict(const Tensor& x, const Tensor& timestep, const NamedTensors& parts) const {
  const Tensor velocity = (*transformer_)({.tokens = flux_tokens(x),
                                           .timestep = timestep,
                                           .guidance = config_.guidance ? parts[kGuidance] : Tensor(),
                                           .pooled = parts[kPooled],
                                           .text = parts[T5Texts::kStates],
                                           .rotary = rotary(x.dim(1), x.dim(2)),
                                           .modulations = parts.has(kModulations) ? parts[kModulations] : Tensor(),
                                           .ranges = T5Texts::ranges(parts, sequence(x.dim(1), x.dim(2)))});
  return flux_latents(velocity, x.dim(1), x.dim(2));
}

bool is_flux(const Checkpoint& model) {
  const bool is_redux = names_pipeline(model, "FluxPriorRedux");  // reads pictures
  if (!model.has(kTransformer)) return names_pipeline(model, "Flux") && !is_redux;
  const Checkpoint transformer = model.component(kTransformer);
  if (transformer.has_config()) return transformer.config().text_or("_class_name", "") == "FluxTransformer2DModel";
  return networks_in(transformer.source()).contains(Network::flux);
}

std::set<std::string> in_blocks(const Checkpoint& model) {
  const Checkpoint denoiser = model.component(kTransformer);
  return matrices_in_blocks(denoiser, flux_source, belongs_to_block,
                            [&](const Scope& s) { FluxTransformer(s, FluxConfig::read(denoiser)); });
}

}  // namespace

DiffusionFamily flux_family() {
  std::map<std::string, std::vector<std::string>> prefixes = flux_lora_prefixes();
  return {
      .is_here = is_flux,
      .open = [](const Checkpoint& model, const ReadingOptions& options) -> std::unique_ptr<Diffusion> {
        return std::make_unique<Flux>(model, options);
      },
      .module_names = [](const Checkpoint&) { return flux_module_names(); },
      .denoiser = kTransformer,
      .in_blocks = in_blocks,
      .components = {clip_component(kClip, prefixes[kClip], ClipKind::l), t5_component(kT5, prefixes[kT5]),
                     vae_encoder_component(), vae_decoder_component(), transformer_component(prefixes[kTransformer]),
                     clip_tokenizer_component("tokenizer", "clip"), t5_tokenizer_component("tokenizer_2")},
      .known = {{"tiny-flux"},
                {"flux-dev", "black-forest-labs/FLUX.1-dev", "FLUX", flux_configs(/*guidance=*/true)},
                {"flux-schnell", "black-forest-labs/FLUX.1-schnell", "FLUX", flux_configs(/*guidance=*/false)},
                {"flux-krea-dev", "black-forest-labs/FLUX.1-Krea-dev", "FLUX", flux_configs(/*guidance=*/true)}}};
}

}  // namespace wick
