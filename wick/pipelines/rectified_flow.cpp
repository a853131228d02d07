#include "wick/pipelines/rectified_flow.h"

#include <cmath>
#include <numbers>

#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/model_defaults.h"

namespace wick {
namespace {

constexpr const char* kClass = "FlowMatchEulerDiscreteScheduler";
constexpr NumberRange kShifts{1e-3, 1e3};

double shifted(double sigma, double shift) { return shift * sigma / (1 + (shift - 1) * sigma); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// diffusers knows more variants of the schedule; none may pass unnoticed.
void check_supported(const Config& config) {
  const std::string name = config.text_or("_class_name", kClass);
  check(name == kClass, "{}: the scheduler of a rectified flow should be {}, found {}", config.source(), kClass,
        quote(name));
  for (const char* key :
       {"use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "invert_sigmas", "stochastic_sampling"})
    check(!config.boolean_or(key, false), "{}: {} should be false, found true", config.source(), key);
}

std::optional<DynamicShift> dynamic_shift(const Config& config) {
  if (!config.boolean_or("use_dynamic_shifting", false)) return {};
  DynamicShift d;
  d.base = config.number_or("base_shift", d.base, {-20, 20});
  d.max = config.number_or("max_shift", d.max, {-20, 20});
  d.base_tokens = config.integer_or("base_image_seq_len", d.base_tokens, kPositive);
  d.max_tokens = config.integer_or("max_image_seq_len", d.max_tokens, kPositive);
  check(d.base_tokens != d.max_tokens, "{}: base_image_seq_len and max_image_seq_len should differ, both are {}",
        config.source(), d.max_tokens);
  const std::string type = config.text_or("time_shift_type", "exponential");
  check(type == "exponential" || type == "linear",
        "{}: time_shift_type should be \"exponential\" or \"linear\", found {}", config.source(), quote(type));
  d.exponential = type == "exponential";
  return d;
}

int64_t tokens_of(const Shape& latents) { return (latents[1] / 2) * (latents[2] / 2); }

}  // namespace

double DynamicShift::operator()(int64_t tokens) const {
  const double slope = (max - base) / double(max_tokens - base_tokens);
  const double mu = base + slope * double(tokens - base_tokens);
  return exponential ? std::exp(mu) : mu;
}

RectifiedFlow::RectifiedFlow(const Config& config, SigmaGrid grid)
    : train_steps_(config.integer_or("num_train_timesteps", 1000, {1, 1'000'000})),
      shift_(config.number_or("shift", 1, kShifts)),
      dynamic_(dynamic_shift(config)),
      grid_(grid) {
  source = config.source();
  class_name = kClass;
  check_supported(config);
  if (config.number_or("shift_terminal", 0) != 0) terminal_ = config.number("shift_terminal", {1e-6, 1 - 1e-6});
}

RectifiedFlow RectifiedFlow::read(const Checkpoint& model, const char* known, SigmaGrid grid) {
  if (model.is_assembled() && !model.has("scheduler"))
    return {Config::parse(known, "the scheduler of " + model.name()), grid};
  return {model.component("scheduler").config(), grid};
}

double RectifiedFlow::shift(const Shape& latents) const {
  if (!dynamic_) return shift_;
  const int64_t tokens = tokens_of(latents);
  const double shift = (*dynamic_)(tokens);
  check(shift > 0 && std::isfinite(shift),
        "{}: base_shift {} at {} tokens and max_shift {} at {} make a shift of {} at this picture's {}; expected one "
        "above 0",
        source, dynamic_->base, dynamic_->base_tokens, dynamic_->max, dynamic_->max_tokens, shift, tokens);
  return shift;
}

Tensor RectifiedFlow::draw_times(const Shape& latents, Rng& rng, const TimestepOptions& options) const {
  const bool is_bounded = options.first > 0 || options.last.value_or(train_steps_) < train_steps_;
  if (is_bounded && options.range == TimestepRange::drawn) {
    // A mean that is given stands for the shift, unless that is given too.
    TimestepOptions unshifted = options;
    unshifted.range = TimestepRange::shifted;
    unshifted.shift = 1, unshifted.mean = options.mean.value_or(0);
    const double k = options.shift.value_or(options.mean ? 1 : shift(latents));
    std::vector<float> sigmas = draw_times(latents, rng, unshifted).to_vector();
    for (float& sigma : sigmas) sigma = float(shifted(sigma, k));
    return Tensor::of(sigmas, {latents[0]});
  }
  const double k = options.shift.value_or(shift(latents)), mean = options.mean.value_or(std::log(k));
  const int64_t count = latents[0];
  const bool is_normal = options.kind == TimestepKind::logit_normal;
  std::vector<float> sigmas = (is_normal ? random_normal({count}, rng) : random_uniform({count}, rng)).to_vector();
  for (float& sigma : sigmas) {
    const double drawn = sigma;
    if (is_normal) {
      sigma = float(sigmoid(mean + options.deviation * drawn));
      continue;
    }
    const double cosine = std::cos(std::numbers::pi / 2 * drawn);
    const bool is_mode = options.kind == TimestepKind::mode;
    sigma = float(shifted(is_mode ? 1 - drawn - kModeScale * (cosine * cosine - 1 + drawn) : drawn, k));
  }
  if (is_bounded) {
    const double first = double(options.first) / double(train_steps_),
                 last = double(options.last.value_or(train_steps_)) / double(train_steps_);
    for (float& sigma : sigmas) sigma = float(first + (last - first) * double(sigma));
  }
  return Tensor::of(sigmas, {count});
}

Noised RectifiedFlow::noised(const Tensor& latents, const Tensor& noise, const Tensor& sigmas) const {
  check(latents.rank() == 4 && sigmas.shape() == Shape{latents.dim(0)},
        "noised: expected one sigma for each sample of {}, found {}", latents.shape(), sigmas.shape());
  const Tensor velocity = noise - latents, sigma = sigmas.to(latents.memory());
  return {.sample = latents + reshape(sigma, {latents.dim(0), 1, 1, 1}) * velocity,
          .timestep = sigma * float(train_steps_),
          .target = velocity};
}

std::vector<double> RectifiedFlow::sigmas(int64_t steps, double shift) const {
  check(1 <= steps && steps <= train_steps_, "sampler: expected 1 to {} (num_train_timesteps of {}), found {}",
        count_of(train_steps_, "step"), source, steps);
  const double least = 1.0 / double(train_steps_);
  const bool from_table = grid_ == SigmaGrid::from_table;
  const double last = from_table ? (dynamic_ ? least : shifted(least, shift)) : 1.0 / double(steps);
  std::vector<double> all;
  for (int64_t i = 0; i < steps; ++i)
    all.push_back(shifted(steps == 1 ? 1 : 1 + (last - 1) * double(i) / double(steps - 1), shift));
  if (terminal_) {
    const double stretch = (1 - all.back()) / (1 - *terminal_);
    check(stretch > 0, "{}: shift_terminal needs at least two steps", source);
    for (double& sigma : all) sigma = 1 - (1 - sigma) / stretch;
  }
  all.push_back(0);
  return all;
}

Sampler RectifiedFlow::sampler(const SamplerOptions& options, const Shape& latents) const {
  const bool second_order = options.kind == SamplerKind::dpmpp_2m;
  check_usage(second_order || options.kind == SamplerKind::euler,
              "--sampler {}: a rectified flow is drawn by euler or dpmpp-2m", name_of(options.kind));
  check_skipped(options);
  std::vector<double> all = sigmas(options.steps, options.shift.value_or(shift(latents)));
  all.erase(all.begin(), all.begin() + options.skipped);
  Sampler sampler{1, {}, /*kept=*/second_order ? size_t{2} : 1};
  sampler.of_picture = float(1 - all.front());
  sampler.of_noise = float(all.front());
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    const Combination x = Combination::x(), velocity = Combination::prediction(), estimate = x - velocity * all[i];
    const float timestep = float(double(train_steps_) * all[i]);
    if (!second_order)
      sampler.steps.push_back({timestep, 1, {x + velocity * (all[i + 1] - all[i])}});
    else if (i == 0 || i + 2 == all.size())
      sampler.steps.push_back({timestep, 1, {euler_step(all[i], all[i + 1], estimate), estimate}});
    else
      sampler.steps.push_back(
          {timestep, 1, {second_order_step(all[i - 1], all[i], all[i + 1], estimate, Combination::kept(1)), estimate}});
  }
  return sampler;
}

}  // namespace wick
