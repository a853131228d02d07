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

// The timestep whose sigma that is, by linear interpolation of the logarithms, as an integer.
double timestep_of(const NoiseSchedule& schedule, double sigma) {
  const int64_t last = schedule.train_steps() - 1;
  if (last == 0) return 0;
  int64_t below = 0;
  while (below + 1 < last && schedule.sigma(below + 1) <= sigma) ++below;
  const double low = std::log(schedule.sigma(below)), high = std::log(schedule.sigma(below + 1));
  const double weight = std::clamp((std::log(sigma) - low) / (high - low), 0.0, 1.0);
  return std::nearbyint(double(below) + weight);
}

double interpolated_sigma(const NoiseSchedule& schedule, double t) {
  const int64_t last = schedule.train_steps() - 1, below = std::min(int64_t(t), last),
                above = std::min(below + 1, last);
  return std::lerp(schedule.sigma(below), schedule.sigma(above), t - std::floor(t));
}

}  // namespace

Sampler euler_sampler(const NoiseSchedule& schedule, int64_t steps) {
  const TimestepSpacing spacing = schedule.spacing.value_or(TimestepSpacing::linspace);
  const std::vector<double> ts = timesteps(schedule, spacing, steps);
  std::vector<double> sigmas;
  for (const double t : ts) sigmas.push_back(interpolated_sigma(schedule, t));
  const double largest = sigmas.front();
  sigmas.push_back(schedule.final_sigma_is_zero ? 0 : schedule.sigma(0));

  // Only leading spacing starts short of the last timestep, where some of the signal is still there.
  Sampler sampler{float(spacing == TimestepSpacing::leading ? std::hypot(largest, 1) : largest), {}};
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

Combination euler_step(double sigma, double next, const Combination& estimate) {
  return Combination::x() * (next / sigma) + estimate * (1 - next / sigma);
}

Combination second_order_step(double before, double sigma, double next, const Combination& estimate,
                              const Combination& last) {
  const double ratio = std::log(before / sigma) / std::log(sigma / next);  // of the steps' lengths in lambda
  return euler_step(sigma, next, estimate + (estimate - last) * (1 / (2 * ratio)));
}

Sampler dpmpp_2m_sampler(const NoiseSchedule& schedule, int64_t steps, bool karras) {
  constexpr int64_t kFew = 15;  // of which the last one is of first order even where sigma does not end at 0
  check(steps >= 1, "sampler: expected 1 step or more, found {}", steps);
  std::vector<double> ts, sigmas;
  if (karras) {
    sigmas = karras_sigmas(schedule, steps);
    for (const double sigma : sigmas) ts.push_back(timestep_of(schedule, sigma));
  } else {
    ts = solver_timesteps(schedule, steps);
    for (const double t : ts) sigmas.push_back(interpolated_sigma(schedule, t));
  }
  sigmas.push_back(schedule.final_sigma_is_zero ? 0 : schedule.sigma(0));
  Sampler sampler{float(std::hypot(sigmas.front(), 1)), {}, /*kept=*/2};
  for (size_t i = 0; i < ts.size(); ++i) {
    const bool is_last = i + 1 == ts.size() && (schedule.final_sigma_is_zero || steps < kFew);
    const Combination estimate = schedule.estimate(sigmas[i]), last = Combination::kept(1);
    const Combination x = i == 0 || is_last
                              ? euler_step(sigmas[i], sigmas[i + 1], estimate)
                              : second_order_step(sigmas[i - 1], sigmas[i], sigmas[i + 1], estimate, last);
    sampler.steps.push_back({float(ts[i]), float(1 / std::hypot(sigmas[i], 1)), {x, estimate}});
  }
  return sampler;
}

Sampler ddim_sampler(const NoiseSchedule& schedule, int64_t steps) {
  check(!schedule.clip_sample, "{}: clip_sample should be false for latents, found true", schedule.source);
  const int64_t stride = schedule.train_steps() / std::max<int64_t>(steps, 1);
  const double final_alpha = schedule.set_alpha_to_one ? 1 : schedule.alpha_cumprod(0);

  Sampler sampler{1, {}};
  for (const double spaced : timesteps(schedule, schedule.spacing.value_or(TimestepSpacing::leading), steps)) {
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
    sampler.steps.push_back({float(t), 1, {Combination::x() * keep + Combination::prediction() * predicted}});
  }
  return sampler;
}

}  // namespace wick
