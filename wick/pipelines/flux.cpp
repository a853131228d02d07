// FLUX.1 (Black Forest Labs, 2024) as a Diffusion: CLIP-L, T5, a transformer and a VAE of 16 channels.
//
// Parts of its conditioning:
//   "T5 states"             [B, L, 4096] in the encoder's dtype
//   "pooled text"           [B, 768] f32, of CLIP
//   "tokens", "T5 tokens"   [B, 77] and [B, L] i64 on the host, in place of the two where their encoder is trained
//   "guidance"              [B] f32, for a model that is told it
//   "first key", "all keys" [B, 1] i32 with T5Options::mask: the range of tokens that are seen, by kohya's rule
//                           (--apply_t5_attn_mask). Padding stands before the text then: T5's positions are relative.
#include <algorithm>
#include <utility>

#include "wick/backend/views.h"
#include "wick/models/clip.h"
#include "wick/models/flux/names.h"
#include "wick/models/flux/transformer.h"
#include "wick/models/t5.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/latent_diffusion.h"
#include "wick/pipelines/rectified_flow.h"
#include "wick/text/clip_tokenizer.h"
#include "wick/text/t5_tokenizer.h"

namespace wick {
namespace {

constexpr const char *kT5States = "T5 states", *kPooled = "pooled text", *kTokens = "tokens", *kT5Tokens = "T5 tokens",
                     *kGuidance = "guidance", *kFirstKey = "first key", *kAllKeys = "all keys";
constexpr const char *kTransformer = "transformer", *kClip = "text_encoder", *kT5 = "text_encoder_2";
constexpr LatentScale kLatents{0.3611f, 0.1159f};

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
      x.timestep = in.number("timestep", in.extent("B")) * 1000.0f;
      if (config.guidance) x.guidance = in.number("guidance", in.extent("B"));
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

class Flux final : public LatentDiffusion {
 public:
  Flux(const Checkpoint& model, const T5Options& t5)
      : LatentDiffusion(model, kTransformer, VaeConfig::read(model.component("vae"), kLatents)),
        config_(FluxConfig::read(model.component(kTransformer))),
        clip_config_(ClipConfig::read(model.component(kClip), ClipKind::l)),
        t5_config_(T5Config::read(model.component(kT5))),
        t5_options_(t5) {
    if (t5_options_.tokens == 0)
      t5_options_.tokens = t5_length(model.component("tokenizer_2"), config_.guidance ? 512 : 256);
    check_fit();
  }

  LatentSpace latents() const override {
    const int64_t factor = vae().factor(), step = 2 * factor;  // a token is 2 x 2 latent pixels
    return {.channels = config_.channels, .factor = factor, .side_step = step, .bucket_step = step, .native = native()};
  }

  const Process& process() const override {
    if (!flow_) flow_.emplace(model().component("scheduler").config(), SigmaGrid::uniform);
    return *flow_;
  }

  DrawingDefaults drawing_defaults() const override {
    if (!config_.guidance) return {.steps = 4, .cfg = 1};
    return {.steps = 28, .cfg = 1, .guidance = 3.5f};
  }

  LoraFormat lora() const override {
    return {.names = flux_module_names(),
            .default_targets = flux_default_targets(),
            .metadata = {{"ss_v2", "False"},
                         {"ss_base_model_version", "flux1"},
                         {"ss_network_module", "networks.lora_flux"},
                         {"modelspec.architecture", config_.guidance ? "flux-1-dev/lora" : "flux-1-schnell/lora"},
                         {"modelspec.implementation", "https://github.com/black-forest-labs/flux"}}};
  }

  std::string denoiser_in_words() const override { return "transformer"; }
  std::string training_remark() const override {
    if (config_.guidance) return {};
    return "schnell draws in 4 steps because it was distilled, which training undoes step by step: train on dev, and "
           "use "
           "the LoRA on schnell.";
  }
  int64_t t5_tokens() const override { return t5_options_.tokens; }
  TextLength length(const std::string& text) const override {
    return {.tokens = tokenizers().t5.length(text) - 1, .limit = t5_options_.tokens - 1};
  }

  NamedTensors caption(const std::string& text) const override;
  NamedTensors framing(const std::vector<PictureFrame>& frames) const override;
  NamedTensors encode_text(const NamedTensors& parts) const override;
  Tensor predict(const Tensor& x, const Tensor& timestep, const NamedTensors& parts) const override;

 private:
  struct Tokenizers {
    ClipTokenizer clip;
    T5Tokenizer t5;
  };

  void load_text_encoders() override;
  void drop_text_encoders() override;
  void load_denoiser(const Scope& s) override { transformer_.emplace(s, config_, options().checkpointing); }
  TensorSource source(const std::string& component) const override {
    return component == kTransformer ? transformer_source(model()) : LatentDiffusion::source(component);
  }

  void check_fit() const;
  int64_t native() const {
    const Checkpoint vae = model().component("vae");
    return vae.has_config() ? vae.config().integer_or("sample_size", 1024, {1, 16384}) : 1024;
  }
  const Tokenizers& tokenizers() const {
    if (!tokenizers_)
      tokenizers_.emplace(Tokenizers{ClipTokenizer::load(model().component("tokenizer").path()),
                                     T5Tokenizer::load(model().component("tokenizer_2").path())});
    return *tokenizers_;
  }
  Tensor clip_ids(const std::string& text) const;  // [1, 77]; of an outline, for which no tokenizer is read, zeros
  Tensor t5_ids(const std::string& text) const;    // [1, L], likewise
  Tensor t5_states(const Tensor& ids) const;
  Tensor ranges(const NamedTensors& parts, int64_t tokens) const;  // [B, L + N, 2], or empty
  const Rotary& rotary(int64_t height, int64_t width) const;       // of a latent's size

  FluxConfig config_;
  ClipConfig clip_config_;
  T5Config t5_config_;
  T5Options t5_options_;
  mutable std::optional<RectifiedFlow> flow_;
  mutable std::optional<Tokenizers> tokenizers_;
  mutable std::map<std::pair<int64_t, int64_t>, Rotary> rotaries_;
  std::optional<ClipText> clip_;
  std::optional<T5Encoder> t5_;
  std::optional<FluxTransformer> transformer_;
};

void Flux::check_fit() const {
  const auto fits = [&](const char* what, int64_t here, int64_t wanted) {
    check(here == wanted, "{}: its {} {} wide, and the transformer wants {}", model().name(), what, here, wanted);
  };
  fits("T5's states are", t5_config_.hidden, config_.text_dim);
  fits("CLIP's pooled states are", clip_config_.with_projection ? clip_config_.projection : clip_config_.hidden,
       config_.pooled_dim);
  fits("VAE's latents are", vae().latent_channels, config_.channels);
}

void Flux::load_text_encoders() {
  if (!options().outline) tokenizers();  // their faults are found before weights are read
  clip_.emplace(scope(kClip), clip_config_);
  t5_.emplace(scope(kT5), t5_config_);
}

void Flux::drop_text_encoders() {
  if (!trains(kClip)) clip_.reset();
  if (!trains(kT5)) t5_.reset();
}

Tensor Flux::clip_ids(const std::string& text) const {
  const std::vector<int64_t> ids =
      options().outline ? std::vector<int64_t>(size_t(clip_config_.positions)) : tokenizers().clip.encode(text);
  return Tensor::of(ids, {1, int64_t(ids.size())});
}

Tensor Flux::t5_ids(const std::string& text) const {
  const int64_t length = t5_options_.tokens;
  std::vector<int64_t> ids(static_cast<size_t>(length));
  if (!options().outline) {
    ids = tokenizers().t5.encode(text, length);
    if (t5_options_.mask) std::ranges::rotate(ids, std::ranges::find(ids, tokenizers().t5.end_id()) + 1);
  }
  return Tensor::of(ids, {1, length});
}

// Padding that stands before a row's text.
int64_t padding_of(const Tensor& ids, int64_t row) {
  const int64_t* first = ids.data<int64_t>() + row * ids.dim(1);
  return std::find_if(first, first + ids.dim(1), [](int64_t id) { return id != T5Tokenizer::kPad; }) - first;
}

Tensor Flux::t5_states(const Tensor& ids) const {
  check(t5_.has_value(), "encode_text: the model's T5 encoder was dropped");
  if (!t5_options_.mask) return (*t5_)(ids);
  Tensor mask = full(ids.shape(), 1, DType::i64);
  for (int64_t row = 0; row < ids.dim(0); ++row)
    std::fill_n(mask.data<int64_t>() + row * ids.dim(1), padding_of(ids, row), 0);
  return (*t5_)(ids, mask);
}

Tensor Flux::ranges(const NamedTensors& parts, int64_t tokens) const {
  if (!t5_options_.mask) return {};
  const int64_t batch = parts[kFirstKey].dim(0);
  const Tensor all = Tensor::empty({batch, tokens, 2}, DType::i32, memory());
  for (const auto& [column, name] : {std::pair{0, kFirstKey}, {1, kAllKeys}})
    backend().copy(part_of(all, 2, column, 1), expand(reshape(parts[name], {batch, 1, 1}), {batch, tokens, 1}));
  return all;
}

NamedTensors Flux::caption(const std::string& text) const {
  const bool trains_clip = trains(kClip), trains_t5 = trains(kT5);
  NamedTensors now, later;
  (trains_clip ? later : now).add(kTokens, clip_ids(text));
  (trains_t5 ? later : now).add(kT5Tokens, t5_ids(text));
  NamedTensors all = encode_text(now);
  if (t5_options_.mask) {
    const std::vector<int64_t> padding{padding_of((trains_t5 ? later : now)[kT5Tokens], 0)};
    all.add(kFirstKey, cast(Tensor::of(padding, {1, 1}), DType::i32).to(memory()));
  }
  all.add(later);
  return all;
}

NamedTensors Flux::encode_text(const NamedTensors& parts) const {
  NamedTensors encoded;
  for (const auto& [name, value] : parts) {
    if (name == kTokens) {
      check(clip_.has_value(), "encode_text: the model's CLIP encoder was dropped");
      encoded.add(kPooled, (*clip_)(value).pooled);
    } else if (name == kT5Tokens) {
      encoded.add(kT5States, t5_states(value));
    } else {
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
  NamedTensors parts;
  if (config_.guidance) {
    std::vector<float> guidance;
    for (const PictureFrame& frame : frames) guidance.push_back(frame.guidance);
    parts.add(kGuidance, Tensor::of(guidance, {count}, memory()));
  }
  if (t5_options_.mask) {
    const std::vector<int64_t> keys(frames.size(), t5_options_.tokens + height / 2 * (width / 2));
    parts.add(kAllKeys, cast(Tensor::of(keys, {count, 1}), DType::i32).to(memory()));
  }
  return parts;
}

// Made outside of steps, which may be recorded.
const Rotary& Flux::rotary(int64_t height, int64_t width) const {
  const auto found = rotaries_.find({height, width});
  if (found != rotaries_.end()) return found->second;
  const Rotary made = flux_rotary(flux_places(t5_options_.tokens, height, width), config_, memory());
  return rotaries_[{height, width}] = made;
}

Tensor Flux::predict(const Tensor& x, const Tensor& timestep, const NamedTensors& parts) const {
  const Tensor velocity =
      (*transformer_)({.tokens = flux_tokens(x),
                       .timestep = timestep,
                       .guidance = config_.guidance ? parts[kGuidance] : Tensor(),
                       .pooled = parts[kPooled],
                       .text = parts[kT5States],
                       .rotary = rotary(x.dim(1), x.dim(2)),
                       .ranges = ranges(parts, t5_options_.tokens + x.dim(1) / 2 * (x.dim(2) / 2))});
  return flux_latents(velocity, x.dim(1), x.dim(2));
}

bool is_flux(const Checkpoint& model) {
  const Checkpoint transformer = model.component(kTransformer);
  return transformer.has_config() && transformer.config().text_or("_class_name", "") == "FluxTransformer2DModel";
}

}  // namespace

DiffusionFamily flux_family() {
  std::map<std::string, std::vector<std::string>> prefixes = flux_lora_prefixes();
  return {
      .is_here = is_flux,
      .open = [](const Checkpoint& model, const T5Options& t5) -> std::unique_ptr<Diffusion> {
        return std::make_unique<Flux>(model, t5);
      },
      .components = {clip_component(kClip, prefixes[kClip], ClipKind::l), t5_component(kT5, prefixes[kT5]),
                     vae_encoder_component(), vae_decoder_component(), transformer_component(prefixes[kTransformer])},
      .known = {{"flux-dev", "black-forest-labs/FLUX.1-dev"},
                {"flux-schnell", "black-forest-labs/FLUX.1-schnell"},
                {"flux-krea-dev", "black-forest-labs/FLUX.1-Krea-dev"}}};
}

}  // namespace wick
