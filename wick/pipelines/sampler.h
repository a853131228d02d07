// Samplers: from noise to a latent along the probability-flow ODE, in diffusers' numerics.
//
// Both are deterministic, and a step of each is linear in the latent and the predicted noise. So a sampler is a list of
// coefficients, worked out in double before the first step.
#pragma once

#include <cstdint>
#include <vector>

#include "wick/pipelines/noise_schedule.h"

namespace wick {

struct SamplerStep {
  float timestep;     // what the UNet is told; between integers for Euler with linspace spacing
  float input_scale;  // the UNet sees input_scale * x
  float keep, noise;  // x becomes keep * x + noise * epsilon
};

struct Sampler {
  float initial_scale;  // standard deviation of the first x
  std::vector<SamplerStep> steps;
};

// Karras et al., 2022, algorithm 2 without churn: diffusers' EulerDiscreteScheduler.
Sampler euler_sampler(const NoiseSchedule& schedule, int64_t steps);
// Song et al., 2021, with eta = 0: diffusers' DDIMScheduler.
Sampler ddim_sampler(const NoiseSchedule& schedule, int64_t steps);

enum class SamplerKind { euler, ddim };
Sampler make_sampler(SamplerKind kind, const NoiseSchedule& schedule, int64_t steps);

}  // namespace wick
