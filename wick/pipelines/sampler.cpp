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
  for (size_t i = 0; i < ts.size(); ++i)
    sampler.steps.push_back({.timestep = float(ts[i]),
                             .input_scale = float(1 / std::hypot(sigmas[i], 1)),
                             .keep = 1,
                             .noise = float(sigmas[i + 1] - sigmas[i])});
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
    // x = sqrt(alpha) x0 + sqrt(1 - alpha) epsilon, solved for x0 and put together again at the next timestep.
    const double keep = std::sqrt(next / alpha);
    sampler.steps.push_back({.timestep = float(t),
                             .input_scale = 1,
                             .keep = float(keep),
                             .noise = float(std::sqrt(1 - next) - keep * std::sqrt(1 - alpha))});
  }
  return sampler;
}

}  // namespace wick
