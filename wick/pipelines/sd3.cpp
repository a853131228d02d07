// Stable Diffusion 3 and 3.5 (Esser et al., 2024) as a Diffusion: CLIP-L, OpenCLIP bigG, T5, a transformer and a VAE of
// 16 channels.
//
// Parts of its conditioning, beside those of T5 (t5_texts.h):
//   "CLIP states"          [B, 77 n, hidden + hidden_2] f32: the encoders' penultimate states side by side, of n chunks
//   "pooled text"          [B, projection + projection_2] f32
//   "modulations"          [B, ...], where they are made ahead
//   "tokens", "tokens 2"   [B, 77] i64 on the host, in place of the two where one of the encoders is trained
//   "weights"              [B, n, 77] f32 on the host, with tokens [B, n, 77] in n chunks, if some token's is not 1
//   "first key"            [B, 1] i32, where texts of unlike n are joined: tokens before it are seen by no other
// The transformer reads T5's states and, behind them, CLIP's with zeros to T5's width; CLIP's first where they may have
// rows that no token sees. (Stability and diffusers always have CLIP's first; text has no positions, so that the order
// does not matter.)
#include <algorithm>
#include <map>
#include <utility>

#include "wick/models/sd3/names.h"
#include "wick/models/sd3/transformer.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/clip_texts.h"
#include "wick/pipelines/latent_diffusion.h"
#include "wick/pipelines/model_defaults.h"
#include "wick/pipelines/rectified_flow.h"
#include "wick/pipelines/t5_texts.h"

namespace wick {
namespace {

constexpr const char *kClipStates = "CLIP states", *kPooled = "pooled text", *kTokens = "tokens",
                     *kTokens2 = "tokens 2", *kWeights = "weights", *kModulations = "modulations";
constexpr const char *kTransformer = "transformer", *kClipL = "text_encoder", *kBigG = "text_encoder_2",
                     *kT5 = "text_encoder_3";
constexpr LatentScale kLatents{1.5305f, 0.0609f};

TensorSource transformer_source(const Checkpoint& model) { return sd3_source(model.component(kTransformer).source()); }

Component transformer_component(std::vector<std::string> lora_prefixes) {
  const auto load = [](const ComponentSource& source) -> ComponentRun {
    const Sd3Config config = Sd3Config::read(source.model.component(kTransformer));
    const Sd3Transformer model(source.scope(kTransformer, transformer_source(source.model)), config);
    return [=](ComponentInputs& in) -> ComponentOutputs {
      Sd3Input x;
      x.latents = to_channels_last(in.variable("hidden_states", {"B", config.channels, {"h", 2}, {"w", 2}}));
      x.text = in.variable("encoder_hidden_states", {"B", "L", config.text_dim});
      x.pooled = in.variable("pooled_projections", {"B", config.pooled_dim});
      in.check_even("hidden_states", {"h", "w"});
      x.timestep = in.number("timestep", in.extent("B"), {0, 1000});
      x.positions = model.positions(in.extent("h"), in.extent("w"));
      if (in.has("skip_layers")) {
        const Tensor skipped = in.whole("skip_layers", {{"K", 0}}, /*least=*/0);
        x.skipped = {skipped.data<int64_t>(), skipped.data<int64_t>() + skipped.numel()};
      }
      const Tensor sample = to_channels_first(model(x));
      return {{{"sample", sample}}, squared_error(sample)};
    };
  };
  return {kTransformer, load, std::move(lora_prefixes)};
}

bool belongs_to_block(const std::string& tensor) {
  return tensor.starts_with("joint_blocks.") && tensor.find(".adaLN_modulation.") == tensor.npos;
}

class Sd3 final : public LatentDiffusion {
 public:
  Sd3(const Checkpoint& model, const ReadingOptions& options)
      : LatentDiffusion(model, kTransformer, VaeConfig::read(model.component("vae"), kLatents)),
        config_(Sd3Config::read(model.component(kTransformer))),
        clip_l_(model, ClipKind::l, options.syntax),
        big_g_(model, ClipKind::big_g, options.syntax),
        t5_(model.component(kT5), tokenizer_path(model, "tokenizer_3", "t5"), options, defaults().t5_tokens),
        clip_is_first_(options.syntax == PromptSyntax::comfyui) {
    check_fit();
  }

  LatentSpace latents() const override {
    const int64_t factor = vae().factor(), step = 2 * factor;  // a token is 2 x 2 latent pixels
    return {.channels = config_.channels,
            .factor = factor,
            .side_step = step,
            .bucket_step = step,
            .native = config_.native_side * step,
            .largest = config_.table_side * step};
  }

  const Process& process() const override {
    if (!flow_) flow_.emplace(RectifiedFlow::read(model(), R"({"shift": 3})", SigmaGrid::from_table));
    return *flow_;
  }

  DrawingDefaults drawing_defaults() const override { return defaults().drawing; }

  LoraFormat lora() const override {
    const std::string kind = !config_.qk_norm ? "medium" : is_medium() ? "5-medium" : "5-large";  // as kohya calls it
    return {.names = sd3_module_names(int(config_.dual.size())),
            .default_targets = sd3_default_targets(),
            .metadata = {{"ss_v2", "False"},
                         {"ss_base_model_version", kind},
                         {"ss_network_module", "networks.lora_sd3"},
                         {"ss_apply_lg_attn_mask", "False"},
                         {"modelspec.architecture", "stable-diffusion-3-" + kind + "/lora"},
                         {"modelspec.implementation", "diffusers"}}};
  }

  std::string denoiser_in_words() const override { return "transformer"; }
  std::vector<std::string> remarks() const override;
  int64_t t5_tokens() const override { return t5_.tokens(); }
  TextLength length(const std::string& text) const override { return t5_.length(text); }
  void read_tokenizers() const override { t5_.tokenizer(), clip_l_.tokenizer(), big_g_.tokenizer(); }

  NamedTensors caption(const std::string& text) const override;
  NamedTensors framing(const std::vector<PictureFrame>& frames) const override;
  NamedTensors encode_text(const NamedTensors& parts) const override;
  NamedTensors joined(const std::vector<NamedTensors>& texts) const override;
  Tensor predict(const Tensor& x, const Tensor& timestep, const NamedTensors& parts) const override {
    return predict_without({}, x, timestep, parts);
  }
  Tensor predict_without(const std::vector<int64_t>& layers, const Tensor& x, const Tensor& timestep,
                         const NamedTensors& parts) const override;
  bool has_layers() const override { return true; }
  std::vector<std::string> parts_ahead() const override {
    return transformer_ && transformer_->modulates_ahead() ? std::vector<std::string>{kPooled}
                                                           : std::vector<std::string>();
  }
  NamedTensors ahead(const Tensor& timesteps, const NamedTensors& parts) const override {
    return {{kModulations, transformer_->modulations({.timestep = timesteps, .pooled = parts[kPooled]})}};
  }

 private:
  void load_text_encoders() override;
  void drop_text_encoders() override;
  bool is_in_blocks(const std::string& tensor) const override { return belongs_to_block(tensor); }
  void load_denoiser(const Scope& s) override {
    positions_.clear();
    transformer_.emplace(s, config_, flow_options(trains_clip()));
  }
  void drop_denoiser() override { transformer_.reset(); }
  TensorSource source(const std::string& component) const override {
    return component == kTransformer ? transformer_source(model()) : LatentDiffusion::source(component);
  }

  const ModelDefaults& defaults() const;
  void check_fit() const;
  bool is_medium() const { return std::ranges::count(config_.dual, true) > 0; }
  bool trains_clip() const { return trains(kClipL) || trains(kBigG); }
  Tensor text_states(const NamedTensors& parts) const;
  const Tensor& positions(int64_t height, int64_t width) const;

  Sd3Config config_;
  ClipTexts clip_l_, big_g_;
  T5Texts t5_;
  bool clip_is_first_;
  mutable std::optional<RectifiedFlow> flow_;
  mutable std::map<std::pair<int64_t, int64_t>, Tensor> positions_;
  std::optional<Sd3Transformer> transformer_;
};

// Large and large-turbo are alike but for their weights: only the name that they go by tells them apart.
const ModelDefaults& Sd3::defaults() const {
  if (!config_.qk_norm) return defaults_of("sd3-medium");
  if (is_medium()) return defaults_of("sd3.5-medium");
  const auto says_turbo = [](const std::filesystem::path& path) {
    return std::any_of(path.begin(), path.end(), [](const std::filesystem::path& part) {
      const std::string name = part.string();
      return name.find("3.5") != name.npos && name.find("turbo") != name.npos;
    });
  };
  const bool turbo = says_turbo(model().name()) || says_turbo(model().component(kTransformer).name());
  return defaults_of(turbo ? "sd3.5-large-turbo" : "sd3.5-large");
}

void Sd3::check_fit() const {
  const ClipConfig &l = clip_l_.config(), &g = big_g_.config();
  check_width(kT5, "T5's states", t5_.config().hidden, config_.text_dim);
  check_width("vae", "VAE's latents", vae().latent_channels, config_.channels);
  const int64_t pooled = l.projection + g.projection;
  check(pooled == config_.pooled_dim,
        "{}: its CLIP encoders' pooled states are together {} wide, and the transformer wants {}", model().name(),
        pooled, config_.pooled_dim);
  const int64_t states = l.hidden + g.hidden;
  check(states <= config_.text_dim, "{}: its CLIP encoders' states are {} wide, and the transformer wants {} at most",
        model().name(), states, config_.text_dim);
  check(l.positions == g.positions,
        "{}: its CLIP encoders should read as many tokens, found {} and {} (max_position_embeddings)", model().name(),
        l.positions, g.positions);
}

std::vector<std::string> Sd3::remarks() const {
  std::vector<std::string> all = remarks_on_tensors(sd3_source, [&](const Scope& s) {
    s.has("pos_embed");  // read when positions are first asked for
    Sd3Transformer(s, config_);
  });
  const Checkpoint clip = model().component(kClipL), transformer = model().component(kTransformer);
  if (!projects_by_identity(clip, clip_l_.config()))
    all.push_back(clip.name() +
                  " projects its pooled state, as diffusers does; ComfyUI leaves it as it is, and draws other "
                  "pictures.");
  if (transformer.has_weights() && !sd3_positions_agree(transformer_source(model()), config_))
    all.push_back(transformer.name() +
                  " stores other positions than the formula gives: those that it stores are used.");
  return all;
}

void Sd3::load_text_encoders() {
  t5_.load(scope(kT5), options());
  clip_l_.load(scope(kClipL));
  big_g_.load(scope(kBigG));
}

void Sd3::drop_text_encoders() {
  if (!trains(kT5)) t5_.drop();
  if (trains_clip()) return;
  clip_l_.drop();
  big_g_.drop();
}

NamedTensors Sd3::caption(const std::string& text) const {
  NamedTensors now, later;
  NamedTensors& clip = trains_clip() ? later : now;
  const ClipIds l = clip_l_.ids(text);
  clip.add(kTokens, l.ids);
  clip.add(kTokens2, big_g_.ids(text).ids);
  if (l.weights) clip.add(kWeights, l.weights);
  const NamedTensors t5 = t5_.ids(text);
  (trains(kT5) ? later : now).add(t5);
  NamedTensors all = encode_text(now);
  all.add(t5_.text_mask(t5, memory()));
  all.add(later);
  return all;
}

NamedTensors Sd3::encode_text(const NamedTensors& parts) const {
  NamedTensors encoded;
  for (const auto& [name, value] : parts) {
    if (name == kTokens) {
      const Tensor weights = parts.has(kWeights) ? parts[kWeights] : Tensor();
      const ClipStates l = clip_l_({value, weights}), g = big_g_({parts[kTokens2], weights});
      encoded.add(kClipStates, cat({l.states, g.states}, 2));
      encoded.add(kPooled, cat({l.pooled, g.pooled}, 1));
    } else if (name == T5Texts::kTokens) {
      encoded.add(T5Texts::kStates, t5_.states(parts));
    } else if (name != kTokens2 && name != kWeights && name != T5Texts::kWeights) {
      encoded.add(name, value);
    }
  }
  return encoded;
}

// A text of fewer chunks gets rows before its first one, which no token sees. (Repeated, as in cross-attention, it
// would count more beside T5's states and the picture.)
NamedTensors Sd3::joined(const std::vector<NamedTensors>& texts) const {
  const auto rows = [](const NamedTensors& text) { return text[kClipStates].dim(1); };
  const int64_t most = rows(*std::ranges::max_element(texts, {}, rows));
  if (std::ranges::all_of(texts, [&](const NamedTensors& text) { return rows(text) == most; }))
    return Diffusion::joined(texts);
  std::vector<NamedTensors> alike;
  for (const NamedTensors& text : texts) {
    const int64_t blind = most - rows(text);
    NamedTensors& longer = alike.emplace_back();
    for (const auto& [name, value] : text)
      longer.add(name, name == kClipStates && blind > 0
                           ? cat({zeros({1, blind, value.dim(2)}, value.dtype(), value.memory()), value}, 1)
                           : value);
    longer.add(T5Texts::kFirstKey, full({1, 1}, float(blind), DType::i32, memory()));
  }
  return Diffusion::joined(alike);
}

NamedTensors Sd3::framing(const std::vector<PictureFrame>& frames) const {
  const int64_t height = frames.front().target_height / vae().factor(),
                width = frames.front().target_width / vae().factor();
  if (transformer_) positions(height, width);
  return {};
}

// Made outside of steps, which may be recorded.
const Tensor& Sd3::positions(int64_t height, int64_t width) const {
  const auto found = positions_.find({height, width});
  if (found != positions_.end()) return found->second;
  return positions_[{height, width}] = transformer_->positions(height, width);
}

// [B, L + 77 n, text_dim]
Tensor Sd3::text_states(const NamedTensors& parts) const {
  const Tensor& t5 = parts[T5Texts::kStates];
  const Tensor clip = cast(parts[kClipStates], t5.dtype());
  const int64_t missing = config_.text_dim - clip.dim(2);
  const Tensor wide =
      missing == 0 ? clip : cat({clip, zeros({clip.dim(0), clip.dim(1), missing}, t5.dtype(), clip.memory())}, 2);
  return clip_is_first_ ? cat({wide, t5}, 1) : cat({t5, wide}, 1);
}

Tensor Sd3::predict_without(const std::vector<int64_t>& layers, const Tensor& x, const Tensor& timestep,
                            const NamedTensors& parts) const {
  const Tensor text = text_states(parts);
  return (*transformer_)({.latents = x,
                          .timestep = timestep,
                          .pooled = parts[kPooled],
                          .text = text,
                          .positions = positions(x.dim(1), x.dim(2)),
                          .modulations = parts.has(kModulations) ? parts[kModulations] : Tensor(),
                          .ranges = T5Texts::ranges(parts, text.dim(1) + x.dim(1) / 2 * (x.dim(2) / 2)),
                          .skipped = {layers.begin(), layers.end()}});
}

bool is_sd3(const Checkpoint& model) {
  if (!model.has(kTransformer)) return names_pipeline(model, "StableDiffusion3");
  const Checkpoint transformer = model.component(kTransformer);
  if (transformer.has_config()) return transformer.config().text_or("_class_name", "") == "SD3Transformer2DModel";
  return transformer_source(model).has("joint_blocks.0.x_block.attn.qkv.weight");
}

// Text encoders' names depend on no number of blocks.
ModuleNames module_names(const Checkpoint& model) {
  const bool is_there = model.has(kTransformer);
  return sd3_module_names(is_there ? int(Sd3Config::read(model.component(kTransformer)).dual.size()) : 1);
}

std::set<std::string> in_blocks(const Checkpoint& model) {
  const Checkpoint denoiser = model.component(kTransformer);
  return matrices_in_blocks(denoiser, sd3_source, belongs_to_block,
                            [&](const Scope& s) { Sd3Transformer(s, Sd3Config::read(denoiser)); });
}

}  // namespace

DiffusionFamily sd3_family() {
  std::map<std::string, std::vector<std::string>> prefixes = sd3_lora_prefixes();
  return {
      .is_here = is_sd3,
      .open = [](const Checkpoint& model, const ReadingOptions& options) -> std::unique_ptr<Diffusion> {
        return std::make_unique<Sd3>(model, options);
      },
      .module_names = module_names,
      .denoiser = kTransformer,
      .in_blocks = in_blocks,
      .components = {clip_component(kClipL, prefixes[kClipL], ClipKind::l),
                     clip_component(kBigG, prefixes[kBigG], ClipKind::big_g), t5_component(kT5, prefixes[kT5]),
                     vae_encoder_component(), vae_decoder_component(), transformer_component(prefixes[kTransformer]),
                     clip_tokenizer_component("tokenizer", "clip"), clip_tokenizer_component("tokenizer_2", "clip_g"),
                     t5_tokenizer_component("tokenizer_3")},
      .known = {{"tiny-sd3"},
                {"sd3-medium", "stabilityai/stable-diffusion-3-medium-diffusers", "SD3", sd3_medium_configs()},
                {"sd3.5-medium", "stabilityai/stable-diffusion-3.5-medium", "SD3", sd35_medium_configs()},
                {"sd3.5-large", "stabilityai/stable-diffusion-3.5-large", "SD3", sd35_large_configs()},
                {"sd3.5-large-turbo", "stabilityai/stable-diffusion-3.5-large-turbo", "SD3", sd35_large_configs()}}};
}

}  // namespace wick
