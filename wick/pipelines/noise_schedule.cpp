#include "wick/pipelines/noise_schedule.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/ops/elementwise.h"

namespace wick {
namespace {

// diffusers' scheduler classes that describe this process, each with its own way to draw from it, and their defaults
// where a config leaves a value out (their constructors, diffusers/schedulers).
struct SchedulerClass {
  std::string_view name;
  double beta_start = 0.0001, beta_end = 0.02;
  bool clip_sample = false;
  const char* beta_schedule = "linear";
};
constexpr std::string_view kLcm = "LCMScheduler";
constexpr SchedulerClass kClasses[] = {{"EulerDiscreteScheduler"},
                                       {"EulerAncestralDiscreteScheduler"},
                                       {"DDIMScheduler", 0.0001, 0.02, true},
                                       {"DDPMScheduler", 0.0001, 0.02, true},
                                       {"PNDMScheduler"},
                                       {"DPMSolverMultistepScheduler"},
                                       {"DPMSolverMultistepInverseScheduler"},
                                       {"DPMSolverSinglestepScheduler"},
                                       {"DPMSolverSDEScheduler", 0.00085, 0.012},
                                       {"UniPCMultistepScheduler"},
                                       {"HeunDiscreteScheduler", 0.00085, 0.012},
                                       {kLcm, 0.00085, 0.012, false, "scaled_linear"}};

// Throws Error for the name of another class; none is of no class.
const SchedulerClass& class_of(const Config& config, const std::string& name) {
  static constexpr SchedulerClass kNone{""};
  if (name.empty()) return kNone;
  const auto* found = std::ranges::find(kClasses, name, &SchedulerClass::name);
  check(found != std::end(kClasses),
        "{}: the scheduler is {}, of whose noise Wick knows nothing; it supports Euler, EulerAncestral, DDIM, DDPM, "
        "PNDM, DPMSolver, UniPC, Heun and LCM",
        config.source(), quote(name));
  return *found;
}

// The scheduler that the pipeline names; nothing where there is none or it does not say.
std::string class_in_pipeline(const Checkpoint& model) {
  if (!model.is_pipeline() || !model.has_config()) return "";
  const Config pipeline = model.config();
  if (!pipeline.has("scheduler")) return "";
  const std::vector<std::string> names = pipeline.texts("scheduler");
  check(names.size() == 2, "{}: scheduler: expected a library and a class, found {}", pipeline.source(),
        count_of(names.size(), "name"));
  return std::string(class_of(pipeline, names.back()).name);
}

// diffusers knows more variants of the process; none may pass unnoticed.
void check_supported(const Config& config) {
  const auto require_text = [&](const char* key, const char* expected) {
    const std::string found = config.text_or(key, expected);
    check(found == expected, "{}: {} should be \"{}\", found \"{}\"", config.source(), key, expected, found);
  };
  require_text("interpolation_type", "linear");
  require_text("timestep_type", "discrete");
  // Which sigmas are visited is said by --sampler, and the process is the same with Karras' (use_karras_sigmas).
  for (const char* key : {"use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas", "use_flow_sigmas",
                          "use_dynamic_shifting", "thresholding"})
    check(!config.boolean_or(key, false), "{}: {} should be false, found true", config.source(), key);
  check(!config.has("trained_betas"), "{}: trained_betas should be null, found a value", config.source());
}

std::vector<double> betas(const Config& config, const SchedulerClass& defaults) {
  const int64_t count = config.integer_or("num_train_timesteps", 1000, {1, 1'000'000});
  const double first = config.number_or("beta_start", defaults.beta_start);
  const double last = config.number_or("beta_end", defaults.beta_end);
  check(0 < first && first <= last && last < 1, "{}: expected 0 < beta_start <= beta_end < 1, found {} and {}",
        config.source(), first, last);
  const std::string kind = config.text_or("beta_schedule", defaults.beta_schedule);
  const bool scaled = kind == "scaled_linear";  // linear in sqrt(beta)
  check(scaled || kind == "linear", "{}: beta_schedule should be \"scaled_linear\" or \"linear\", found \"{}\"",
        config.source(), kind);

  const double from = scaled ? std::sqrt(first) : first, to = scaled ? std::sqrt(last) : last;
  std::vector<double> values(static_cast<size_t>(count));
  for (int64_t t = 0; t < count; ++t) {
    const double x = count == 1 ? from : from + (to - from) * double(t) / double(count - 1);
    values[size_t(t)] = scaled ? x * x : x;
  }
  return values;
}

std::optional<TimestepSpacing> spacing_of(const Config& config) {
  if (!config.has("timestep_spacing")) return {};
  const std::string name = config.text("timestep_spacing");
  if (name == "leading") return TimestepSpacing::leading;
  if (name == "trailing") return TimestepSpacing::trailing;
  if (name == "linspace") return TimestepSpacing::linspace;
  fail("{}: timestep_spacing should be \"leading\", \"trailing\" or \"linspace\", found \"{}\"", config.source(), name);
}

Prediction prediction_of(const Config& config, PredictionSetting asked) {
  if (asked != PredictionSetting::automatic)
    return asked == PredictionSetting::epsilon ? Prediction::noise : Prediction::v;
  const std::string name = config.text_or("prediction_type", "epsilon");
  check(name == "epsilon" || name == "v_prediction",
        "{}: prediction_type should be \"epsilon\" or \"v_prediction\", found {}", config.source(), quote(name));
  return name == "epsilon" ? Prediction::noise : Prediction::v;
}

// Moves and stretches the signal so that the last timestep has none (Lin et al., 2023, algorithm 1).
void leave_no_signal(std::vector<double>& alphas_cumprod) {
  const double first = std::sqrt(alphas_cumprod.front()), last = std::sqrt(alphas_cumprod.back());
  for (double& alpha : alphas_cumprod) {
    const double signal = (std::sqrt(alpha) - last) * first / (first - last);
    alpha = signal * signal;
  }
  alphas_cumprod.back() = 0;
}

// The scheduler of a model of files alone: that of SDXL's own folder, or what markers in the UNet's file say of it.
Config config_of_files(const Checkpoint& model) {
  nlohmann::json config = {{"_class_name", "EulerDiscreteScheduler"},
                           {"beta_schedule", "scaled_linear"},
                           {"beta_start", 0.00085},
                           {"beta_end", 0.012},
                           {"set_alpha_to_one", false},
                           {"steps_offset", 1},
                           {"timestep_spacing", "leading"}};
  const Checkpoint unet = model.component("unet");
  if (unet.has_weights() && !std::filesystem::is_directory(unet.path())) {
    const TensorSource file = open_source(unet.path());
    const auto is_marked = [&](const std::string& marker) {
      return file.has(marker) || file.has("model.diffusion_model." + marker);
    };
    for (const char* marker : {"edm_mean", "edm_vpred.sigma_max"})
      check(!is_marked(marker),
            "{}: its tensor \"{}\" says that it was trained on EDM's noise (Playground v2.5, CosXL), "
            "which Wick does not draw from",
            file.name, marker);
    if (is_marked("v_pred")) {  // "ztsnr" alone means nothing to ComfyUI either
      config["prediction_type"] = "v_prediction";
      if (is_marked("ztsnr")) config["rescale_betas_zero_snr"] = true, config["timestep_spacing"] = "trailing";
    }
  }
  return Config::parse(config.dump(), "the scheduler of " + model.name());
}

bool final_sigma_is_zero_in(const Config& config) {
  const std::string name = config.text_or("final_sigmas_type", "zero");
  check(name == "zero" || name == "sigma_min",
        "{}: final_sigmas_type should be \"zero\" or \"sigma_min\", found \"{}\"", config.source(), name);
  return name == "zero";
}

}  // namespace

// The config says of which class it was saved. Where it does not, diffusers takes the class that model_index.json names
// (DiffusionPipeline.from_pretrained). That one must be known in either case: diffusers would make such a scheduler.
NoiseSchedule NoiseSchedule::read(const Checkpoint& model, PredictionSetting asked) {
  if (model.is_assembled() && !model.has("scheduler")) return NoiseSchedule(config_of_files(model), asked);
  const Config config = model.component("scheduler").config();
  const std::string in_pipeline = class_in_pipeline(model);
  const std::string name = config.text_or("_class_name", in_pipeline);
  check(!name.empty(), "{}: expected a _class_name there or a scheduler in model_index.json, found neither",
        config.source());
  return {config, name, asked};
}

NoiseSchedule::NoiseSchedule(const Config& config, PredictionSetting asked)
    : NoiseSchedule(config, config.text_or("_class_name", ""), asked) {}

NoiseSchedule::NoiseSchedule(const Config& config, const std::string& name, PredictionSetting asked)
    : spacing(spacing_of(config)),
      steps_offset(config.integer_or("steps_offset", 0, {0, 1'000'000})),
      set_alpha_to_one(config.boolean_or("set_alpha_to_one", true)),
      clip_sample(config.boolean_or("clip_sample", class_of(config, name).clip_sample)),
      final_sigma_is_zero(final_sigma_is_zero_in(config)),
      prediction(prediction_of(config, asked)),
      original_steps(config.integer_or("original_inference_steps", 50, {1, 1'000'000})),
      timestep_scaling(config.number_or("timestep_scaling", 10, {1e-6, 1e6})) {
  source = config.source();
  class_name = name;
  is_distilled = name == kLcm;
  check_supported(config);
  double product = 1;
  for (const double beta : betas(config, class_of(config, name))) alphas_cumprod_.push_back(product *= 1 - beta);
  check(product > 0, "{}: the betas leave no signal at the last timestep", source);
  const bool is_asked = asked != PredictionSetting::automatic, ends_in_noise = asked == PredictionSetting::v_zero_snr;
  if (ends_in_noise) spacing = TimestepSpacing::trailing;
  if (ends_in_noise || config.boolean_or("rescale_betas_zero_snr", false)) {
    check(train_steps() > 1 && prediction == Prediction::v,
          "{}: rescale_betas_zero_snr leaves no signal at the last timestep, where only v can be predicted; "
          "{} should be {}",
          source, is_asked ? "--prediction" : "prediction_type", is_asked ? "v" : "\"v_prediction\"");
    leave_no_signal(alphas_cumprod_);
  }
}

double NoiseSchedule::snr(double timestep) const {
  const double alpha = alpha_cumprod(int64_t(timestep));
  return alpha / (1 - alpha);
}

double NoiseSchedule::sigma(int64_t t) const {
  constexpr double kLeast = 1.0 / (1 << 24);
  const double alpha = std::max(alpha_cumprod(t), kLeast);
  return std::sqrt((1 - alpha) / alpha);
}

Combination NoiseSchedule::estimate(double sigma) const {
  const double scale = 1 / std::hypot(sigma, 1);
  return prediction == Prediction::v ? Combination::x() * (scale * scale) - Combination::prediction() * (sigma * scale)
                                     : Combination::x() - Combination::prediction() * sigma;
}

Tensor NoiseSchedule::draw_times(const Shape& latents, Rng& rng, const TimestepOptions& options) const {
  const int64_t first = options.first, last = options.last.value_or(train_steps());
  std::vector<int64_t> timesteps(static_cast<size_t>(latents[0]), last);
  if (first < last)
    for (int64_t& t : timesteps) t = first + int64_t(rng.below(uint64_t(last - first)));
  return Tensor::of(timesteps, {latents[0]});
}

Noised NoiseSchedule::noised(const Tensor& latents, const Tensor& noise, const Tensor& timesteps) const {
  check(latents.rank() > 0 && timesteps.shape() == Shape{latents.dim(0)},
        "noised: expected one timestep for each sample of {}, found {}", latents.shape(), timesteps.shape());
  Shape per_sample{latents.dim(0)};
  while (per_sample.rank() < latents.rank()) per_sample.push_back(1);
  Memory& memory = latents.memory();
  std::vector<float> signals, sigmas;
  for (int64_t i = 0; i < latents.dim(0); ++i) {
    const double alpha = alpha_cumprod(timesteps.data<int64_t>()[i]);
    signals.push_back(float(std::sqrt(alpha)));
    sigmas.push_back(float(std::sqrt(1 - alpha)));
  }
  const Tensor signal = Tensor::of(signals, per_sample, memory), sigma = Tensor::of(sigmas, per_sample, memory);
  return {.sample = signal * latents + sigma * noise,
          .timestep = Tensor::of(timesteps.to_vector(), timesteps.shape(), memory),
          .target = prediction == Prediction::v ? signal * noise - sigma * latents : noise};
}

Sampler NoiseSchedule::sampler(const SamplerOptions& options, const Shape&) const {
  check_usage(!options.shift, "--shift: {} describes no rectified flow, which alone has a shift", source);
  check_skipped(options);
  const int64_t steps = options.steps, skipped = options.skipped;
  switch (options.kind) {
    case SamplerKind::euler:
      return euler_sampler(*this, steps, skipped);
    case SamplerKind::euler_ancestral:
      return euler_ancestral_sampler(*this, steps, skipped);
    case SamplerKind::dpmpp_sde:
      return dpmpp_sde_sampler(*this, steps, skipped);
    case SamplerKind::ddim:
      return ddim_sampler(*this, steps, skipped);
    case SamplerKind::unipc:
      return unipc_sampler(*this, steps, skipped);
    case SamplerKind::lcm:
      return lcm_sampler(*this, steps, skipped);
    default:
      return dpmpp_2m_sampler(*this, steps, options.kind == SamplerKind::dpmpp_2m_karras, skipped);
  }
}

}  // namespace wick
