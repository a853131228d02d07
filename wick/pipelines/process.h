// How a diffusion model goes from a latent to noise, and back: DDPM's schedule (noise_schedule.h), or a rectified flow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wick/core/rng.h"
#include "wick/core/tensor.h"

namespace wick {

// Samplers go from noise to a latent along the probability-flow ODE, in diffusers' numerics. They are deterministic,
// and a step is linear in the latent and the prediction. So a sampler is a list of coefficients, worked out in double
// before the first step.
struct SamplerStep {
  float timestep;     // the model's input; between integers for Euler with linspace spacing
  float input_scale;  // the model sees input_scale * x
  float keep, noise;  // x becomes keep * x + noise * prediction
};

struct Sampler {
  float initial_scale;  // standard deviation of the first x
  std::vector<SamplerStep> steps;
};

enum class SamplerKind { euler, ddim };

struct Noised {     // B latents somewhere between signal and noise
  Tensor sample;    // [B, h, w, C], the model's input
  Tensor timestep;  // [B] f32, its time, in the latents' memory
  Tensor target;    // [B, h, w, C], of its prediction
};

class Process {
 public:
  virtual ~Process() = default;

  // For latents [B, h, w, C] of that shape: a time of the process for each, [B] on the host, as training draws them.
  virtual Tensor draw_times(const Shape& latents, Rng& rng) const = 0;
  // The latents at these times, with noise of their shape and unit variance.
  virtual Noised noised(const Tensor& latents, const Tensor& noise, const Tensor& times) const = 0;
  // How latents of that shape are drawn in so many steps. Throws Error where the process cannot be drawn so.
  virtual Sampler sampler(SamplerKind kind, int64_t steps, const Shape& latents) const = 0;
  virtual int64_t train_steps() const = 0;  // a sampler has at most as many steps

  std::string source;      // the file that describes the process, for messages
  std::string class_name;  // diffusers' scheduler, which would draw with its own sampler; may be empty
};

}  // namespace wick
