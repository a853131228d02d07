// Samplers for DDPM's noise schedule.
#pragma once

#include "wick/pipelines/noise_schedule.h"

namespace wick {

// Karras et al., 2022, algorithm 2 without churn: diffusers' EulerDiscreteScheduler.
Sampler euler_sampler(const NoiseSchedule& schedule, int64_t steps);
// Song et al., 2021, with eta = 0: diffusers' DDIMScheduler.
Sampler ddim_sampler(const NoiseSchedule& schedule, int64_t steps);

}  // namespace wick
