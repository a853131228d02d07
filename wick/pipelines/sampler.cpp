// Samplers for DDPM's noise schedule.

#include <algorithm>
#include <cmath>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/pipelines/noise_schedule.h"

namespace wick {
namespace {

// The training timesteps to visit, from noise to picture.
std::vector<double> timesteps(const NoiseSchedule& schedule, TimestepSpacing spacing, int64_t steps) {
  const int64_t train_steps = schedule.train_steps();
  check(1 <= steps && steps <= train_steps, "sampler: expected 1 to {} (num_train_timesteps of {}), found {}",
        count_of(train_steps, "step"), schedule.source, steps);
  std::vector<double> ts;
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t from_end = steps - 1 - i;
    switch (spacing) {
      case TimestepSpacing::leading:
        ts.push_back(double(from_end * (train_steps / steps) + schedule.steps_offset));
        break;
      case TimestepSpacing::trailing:  // nearbyint rounds half to even, as NumPy does
        ts.push_back(std::nearbyint(double(train_steps) - double(i) * double(train_steps) / double(steps)) - 1);
        break;
      case TimestepSpacing::linspace:
        ts.push_back(steps == 1 ? 0 : double(from_end) * double(train_steps - 1) / double(steps - 1));
        break;
    }
  }
  return ts;
}

// Those of DPM-Solver, which has one more point, behind the last step; that it leaves out.
std::vector<double> solver_timesteps(const NoiseSchedule& schedule, int64_t steps) {
  const TimestepSpacing spacing = schedule.spacing.value_or(TimestepSpacing::linspace);
  if (spacing == TimestepSpacing::trailing) return timesteps(schedule, spacing, steps);
  check(1 <= steps && steps < schedule.train_steps(), "sampler: expected 1 to {} (num_train_timesteps of {}), found {}",
        count_of(schedule.train_steps() - 1, "step"), schedule.source, steps);
  std::vector<double> ts = timesteps(schedule, spacing, steps + 1);
  ts.pop_back();
  for (double& t : ts) t = std::nearbyint(t);
  return ts;
}

// The timesteps of the model that was distilled, of which LCM's are some.
std::vector<int64_t> lcm_timesteps(const NoiseSchedule& schedule, int64_t steps) {
  const int64_t original = std::min(schedule.original_steps, schedule.train_steps());
  check(1 <= steps && steps <= original, "--sampler lcm: expected 1 to {} (original_inference_steps of {}), found {}",
        count_of(original, "step"), schedule.source, steps);
  const int64_t stride = schedule.train_steps() / original;
  const double skipped = double(original) / double(steps);
  std::vector<int64_t> ts;
  for (int64_t i = 0; i < steps; ++i) ts.push_back((original - int64_t(double(i) * skipped)) * stride - 1);
  return ts;
}

// Between the schedule's largest and smallest.
std::vector<double> karras_sigmas(const NoiseSchedule& schedule, int64_t steps) {
  constexpr double kRho = 7;
  const double largest = std::pow(schedule.sigma(schedule.train_steps() - 1), 1 / kRho),
               smallest = std::pow(schedule.sigma(0), 1 / kRho);
  std::vector<double> sigmas;
  for (int64_t i = 0; i < steps; ++i)
    sigmas.push_back(std::pow(std::lerp(largest, smallest, steps == 1 ? 0 : double(i) / double(steps - 1)), kRho));
  return sigmas;
}

// The timestep whose sigma that is, by linear interpolation of the logarithms.
double timestep_of(const NoiseSchedule& schedule, double sigma) {
  const int64_t last = schedule.train_steps() - 1;
  if (last == 0) return 0;
  int64_t below = 0;
  while (below + 1 < last && schedule.sigma(below + 1) <= sigma) ++below;
  const double low = std::log(schedule.sigma(below)), high = std::log(schedule.sigma(below + 1));
  const double weight = std::clamp((std::log(sigma) - low) / (high - low), 0.0, 1.0);
  return double(below) + weight;
}

double interpolated_sigma(const NoiseSchedule& schedule, double t) {
  const int64_t last = schedule.train_steps() - 1, below = std::min(int64_t(t), last),
                above = std::min(below + 1, last);
  return std::lerp(schedule.sigma(below), schedule.sigma(above), t - std::floor(t));
}

// All but the first of them.
template <class T>
std::vector<T> behind(std::vector<T> all, int64_t skipped) {
  all.erase(all.begin(), all.begin() + skipped);
  return all;
}

// A sampler of x = picture + sigma * noise, which begins at that sigma.
Sampler beginning_at(double sigma, float initial_scale, size_t kept = 1) {
  return {initial_scale, {}, kept, /*of_picture=*/1, /*of_noise=*/float(sigma)};
}

// Where Euler's samplers go, and how they begin.
struct EulerPath {
  std::vector<double> ts, sigmas;  // sigmas without the last, at which there is no step
  Sampler sampler;
};

EulerPath euler_path(const NoiseSchedule& schedule, int64_t steps, int64_t skipped) {
  const TimestepSpacing spacing = schedule.spacing.value_or(TimestepSpacing::linspace);
  EulerPath path{behind(timesteps(schedule, spacing, steps), skipped), {}, {}};
  for (const double t : path.ts) path.sigmas.push_back(interpolated_sigma(schedule, t));
  // Only leading spacing starts short of the last timestep, where some of the signal is still there.
  const double largest = path.sigmas.front();
  path.sampler = beginning_at(largest, float(spacing == TimestepSpacing::leading ? std::hypot(largest, 1) : largest));
  return path;
}

// The model's input of unit variance for x = picture + sigma * noise.
float input_scale(double sigma) { return float(1 / std::hypot(sigma, 1)); }

// From sigma to `next` with fresh noise, so that no more than next^2 / sigma of the old is left.
Combination ancestral_step(double sigma, double next, const Combination& estimate,
                           const Combination& from = Combination::x()) {
  const double down = next * next / sigma, up = std::sqrt(next * next - down * down);
  return euler_step(sigma, down, estimate, from) + Combination::draw() * up;
}

// The step before, from `before` to sigma, taken again with the estimate `here` at its end: UniC. x is where it began,
// `last` its estimate, and `earlier` the one at the sigma of the step before it; none (0) makes it of first order.
Combination corrected_step(double earlier_sigma, double before, double sigma, const Combination& x,
                           const Combination& here, const Combination& last, const Combination& earlier) {
  const double h = std::log(before / sigma);
  const Combination change = here - last;
  if (earlier_sigma == 0) return euler_step(before, sigma, last + change * 0.5, x);
  // Weights of both differences that fit a polynomial: equation 10 of the paper, with phi_k(-h) in closed form.
  const double ratio = -std::log(earlier_sigma / before) / h;
  const double phi = std::expm1(-h), first = phi / -h - 1, second = first / -h - 0.5;
  const double to_first = first / phi, to_second = 2 * second / phi;
  const double of_earlier = (to_first - to_second) / (1 - ratio), of_here = to_first - of_earlier;
  return euler_step(before, sigma, last + (earlier - last) * (of_earlier / ratio) + change * of_here, x);
}

}  // namespace

Sampler euler_sampler(const NoiseSchedule& schedule, int64_t steps, int64_t skipped) {
  auto [ts, sigmas, sampler] = euler_path(schedule, steps, skipped);
  sigmas.push_back(schedule.final_sigma_is_zero ? 0 : schedule.sigma(0));
  for (size_t i = 0; i < ts.size(); ++i) {
    const double sigma = sigmas[i], change = sigmas[i + 1] - sigma, scale = 1 / std::hypot(sigma, 1);
    const Combination noise = schedule.prediction == Prediction::v
                                  ? Combination::x() * (sigma * scale * scale) + Combination::prediction() * scale
                                  : Combination::prediction();
    sampler.steps.push_back(
        {float(ts[i]), float(scale), {Combination::x() + noise * change}});  // dx/dsigma is the noise
  }
  return sampler;
}

Sampler euler_ancestral_sampler(const NoiseSchedule& schedule, int64_t steps, int64_t skipped) {
  auto [ts, sigmas, sampler] = euler_path(schedule, steps, skipped);
  sigmas.push_back(0);
  for (size_t i = 0; i < ts.size(); ++i)
    sampler.steps.push_back({float(ts[i]),
                             input_scale(sigmas[i]),
                             {ancestral_step(sigmas[i], sigmas[i + 1], schedule.estimate(sigmas[i]))}});
  return sampler;
}

Combination euler_step(double sigma, double next, const Combination& estimate, const Combination& from) {
  return from * (next / sigma) + estimate * (1 - next / sigma);
}

Combination second_order_estimate(double before, double sigma, double next, const Combination& estimate,
                                  const Combination& last) {
  const double ratio = std::log(before / sigma) / std::log(sigma / next);  // of the steps' lengths in lambda
  return estimate + (estimate - last) * (1 / (2 * ratio));
}

Combination second_order_step(double before, double sigma, double next, const Combination& estimate,
                              const Combination& last) {
  return euler_step(sigma, next, second_order_estimate(before, sigma, next, estimate, last));
}

Sampler dpmpp_2m_sampler(const NoiseSchedule& schedule, int64_t steps, bool karras, int64_t skipped) {
  constexpr int64_t kFew = 15;  // of which the last one is of first order even where sigma does not end at 0
  check(steps >= 1, "sampler: expected 1 step or more, found {}", steps);
  std::vector<double> ts, sigmas;
  if (karras) {
    sigmas = behind(karras_sigmas(schedule, steps), skipped);
    for (const double sigma : sigmas) ts.push_back(std::nearbyint(timestep_of(schedule, sigma)));
  } else {
    ts = behind(solver_timesteps(schedule, steps), skipped);
    for (const double t : ts) sigmas.push_back(interpolated_sigma(schedule, t));
  }
  sigmas.push_back(schedule.final_sigma_is_zero ? 0 : schedule.sigma(0));
  Sampler sampler = beginning_at(sigmas.front(), float(std::hypot(sigmas.front(), 1)), /*kept=*/2);
  for (size_t i = 0; i < ts.size(); ++i) {
    const bool is_last = i + 1 == ts.size() && (schedule.final_sigma_is_zero || steps < kFew);
    const Combination estimate = schedule.estimate(sigmas[i]), last = Combination::kept(1);
    const Combination x = i == 0 || is_last
                              ? euler_step(sigmas[i], sigmas[i + 1], estimate)
                              : second_order_step(sigmas[i - 1], sigmas[i], sigmas[i + 1], estimate, last);
    sampler.steps.push_back({float(ts[i]), input_scale(sigmas[i]), {x, estimate}});
  }
  return sampler;
}

Sampler dpmpp_sde_sampler(const NoiseSchedule& schedule, int64_t steps, int64_t skipped) {
  check(steps >= 1, "sampler: expected 1 step or more, found {}", steps);
  std::vector<double> sigmas = behind(karras_sigmas(schedule, steps), skipped);
  sigmas.push_back(0);
  Sampler sampler = beginning_at(sigmas.front(), float(sigmas.front()), /*kept=*/2);  // x and where the step began
  const Combination x = Combination::x(), start = Combination::kept(1);
  const auto evaluate = [&](double sigma, const Combination& next, const Combination& begun, bool is_midway) {
    sampler.steps.push_back({float(timestep_of(schedule, sigma)), input_scale(sigma), {next, begun}, is_midway});
  };
  for (size_t i = 0; i + 1 < sigmas.size(); ++i) {
    const double sigma = sigmas[i], next = sigmas[i + 1], middle = std::sqrt(sigma * next);
    const Combination estimate = schedule.estimate(sigma);
    if (next == 0) {
      evaluate(sigma, estimate, x, false);
    } else {
      evaluate(sigma, ancestral_step(sigma, middle, estimate), x, true);
      evaluate(middle, ancestral_step(sigma, next, schedule.estimate(middle), start), x, false);
    }
  }
  return sampler;
}

Sampler unipc_sampler(const NoiseSchedule& schedule, int64_t steps, int64_t skipped) {
  const std::vector<double> ts = behind(solver_timesteps(schedule, steps), skipped);
  std::vector<double> sigmas;
  for (const double t : ts) sigmas.push_back(interpolated_sigma(schedule, t));
  sigmas.push_back(schedule.final_sigma_is_zero ? 0 : schedule.sigma(0));
  // x as predicted, where the step before began, and the estimates of the two steps before.
  Sampler sampler = beginning_at(sigmas.front(), float(std::hypot(sigmas.front(), 1)), /*kept=*/4);
  const Combination begun = Combination::kept(1), last = Combination::kept(2), earlier = Combination::kept(3);
  for (size_t i = 0; i < ts.size(); ++i) {
    const double sigma = sigmas[i], next = sigmas[i + 1];
    const Combination estimate = schedule.estimate(sigma);
    const Combination x =
        i == 0 ? Combination::x()
               : corrected_step(i == 1 ? 0 : sigmas[i - 2], sigmas[i - 1], sigma, begun, estimate, last, earlier);
    const bool is_first_order = i == 0 || i + 1 == ts.size();
    // The prediction goes on from the corrected x.
    const Combination by =
        is_first_order ? estimate : second_order_estimate(sigmas[i - 1], sigma, next, estimate, last);
    sampler.steps.push_back({float(ts[i]), input_scale(sigma), {euler_step(sigma, next, by, x), x, estimate, last}});
  }
  return sampler;
}

Sampler lcm_sampler(const NoiseSchedule& schedule, int64_t steps, int64_t skipped) {
  check(!schedule.clip_sample, "{}: clip_sample should be false for latents, found true", schedule.source);
  constexpr double kDeviation = 0.5;  // of the data, in the boundary conditions
  const std::vector<int64_t> ts = behind(lcm_timesteps(schedule, steps), skipped);
  const double largest = schedule.sigma(ts.front());
  Sampler sampler = beginning_at(largest, float(std::hypot(largest, 1)));
  for (size_t i = 0; i < ts.size(); ++i) {
    const double sigma = schedule.sigma(ts[i]), next = i + 1 < ts.size() ? schedule.sigma(ts[i + 1]) : 0;
    const double time = double(ts[i]) * schedule.timestep_scaling, norm = std::hypot(time, kDeviation);
    const double of_x = kDeviation * kDeviation / (norm * norm), of_estimate = time / norm;
    const Combination picture =
        schedule.estimate(sigma) * of_estimate + Combination::x() * (of_x / std::hypot(sigma, 1));
    sampler.steps.push_back({float(ts[i]), input_scale(sigma), {picture + Combination::draw() * next}});
  }
  return sampler;
}

Sampler ddim_sampler(const NoiseSchedule& schedule, int64_t steps, int64_t skipped) {
  check(!schedule.clip_sample, "{}: clip_sample should be false for latents, found true", schedule.source);
  const int64_t stride = schedule.train_steps() / std::max<int64_t>(steps, 1);
  const double final_alpha = schedule.set_alpha_to_one ? 1 : schedule.alpha_cumprod(0);

  Sampler sampler{1, {}};
  const TimestepSpacing spacing = schedule.spacing.value_or(TimestepSpacing::leading);
  for (const double spaced : behind(timesteps(schedule, spacing, steps), skipped)) {
    const int64_t t = std::llrint(spaced);
    check(t < schedule.train_steps(), "ddim: {} with steps_offset {} start past timestep {}; take fewer steps",
          count_of(steps, "step"), schedule.steps_offset, schedule.train_steps() - 1);
    const double alpha = schedule.alpha_cumprod(t);
    const double next = t >= stride ? schedule.alpha_cumprod(t - stride) : final_alpha;
    // x = sqrt(alpha) x0 + sqrt(1 - alpha) epsilon, solved for x0 and put together again at the next timestep; with
    // v = sqrt(alpha) epsilon - sqrt(1 - alpha) x0 for both.
    const double signal = std::sqrt(alpha), noise = std::sqrt(1 - alpha), next_signal = std::sqrt(next),
                 next_noise = std::sqrt(1 - next);
    const bool of_v = schedule.prediction == Prediction::v;
    const double keep = of_v ? next_signal * signal + next_noise * noise : next_signal / signal;
    const double predicted = of_v ? next_noise * signal - next_signal * noise : next_noise - keep * noise;
    if (sampler.steps.empty()) sampler.of_picture = float(signal), sampler.of_noise = float(noise);
    sampler.steps.push_back({float(t), 1, {Combination::x() * keep + Combination::prediction() * predicted}});
  }
  return sampler;
}

}  // namespace wick
