// How a diffusion model goes from a latent to noise, and back: DDPM's schedule (noise_schedule.h), or a rectified flow
// (rectified_flow.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "wick/core/rng.h"
#include "wick/core/tensor.h"

namespace wick {

// Samplers go from noise to a latent along the probability-flow ODE, in diffusers' numerics. They are deterministic,
// and a step is linear in the latent, the prediction and the step before's estimate of the picture. So a sampler is
// a list of coefficients, worked out in double before the first step.
struct Estimate {  // of the picture: keep * x + prediction * (the model's)
  double keep = 0, prediction = 0;
};

struct SamplerStep {
  float timestep;     // the model's input; between integers for Euler with linspace spacing
  float input_scale;  // the model sees input_scale * x
  float keep, noise;  // x becomes keep * x + noise * prediction + previous * (the step before's estimate)
  float previous = 0;
  Estimate estimate = {};  // where the sampler is of several steps
};

struct Sampler {
  float initial_scale;  // standard deviation of the first x
  std::vector<SamplerStep> steps;
  bool multistep = false;  // steps read the estimate before
};

// The coefficients of a step from sigma to `next`, where x is the picture + sigma * noise. `before`: the sigma of the
// step before, if this one is of second order (DPM-Solver++(2M), Lu et al., 2022; in the form of k-diffusion's
// sample_dpmpp_2m). Without one this is Euler's step.
SamplerStep step_between(double sigma, double next, std::optional<double> before, const Estimate& estimate);

enum class SamplerKind { euler, ddim, dpmpp_2m, dpmpp_2m_karras };

struct SamplerOptions {
  SamplerKind kind = SamplerKind::euler;
  int64_t steps = 30;
  std::optional<double> shift = {};  // of a rectified flow, in place of its own
};

// How training draws the times of a rectified flow (Esser et al., 2024, section 3.1).
enum class TimestepKind { logit_normal, uniform, mode };
inline constexpr double kModeScale = 1.29;
struct TimestepOptions {
  TimestepKind kind = TimestepKind::logit_normal;
  std::optional<double> shift = {};  // none: the process's own for the picture's size
  std::optional<double> mean = {};   // of the logit, in place of the shift's logarithm
  double deviation = 1;              // of the logit
};

struct Noised {     // B latents somewhere between signal and noise
  Tensor sample;    // [B, h, w, C], the model's input
  Tensor timestep;  // [B] f32, its time, in the latents' memory
  Tensor target;    // [B, h, w, C], of its prediction
};

class Process {
 public:
  virtual ~Process() = default;

  // For latents [B, h, w, C] of that shape: a time of the process for each, [B] on the host, as training draws them.
  virtual Tensor draw_times(const Shape& latents, Rng& rng, const TimestepOptions& options = {}) const = 0;
  // The latents at these times, with noise of their shape and unit variance.
  virtual Noised noised(const Tensor& latents, const Tensor& noise, const Tensor& times) const = 0;
  // How latents of that shape are drawn. Throws Error where the process cannot be drawn so.
  virtual Sampler sampler(const SamplerOptions& options, const Shape& latents) const = 0;
  virtual bool is_flow() const { return false; }  // TimestepOptions and a shift are for rectified flows alone
  virtual std::optional<double> fixed_shift() const { return {}; }  // a flow's, if pictures of all sizes have one
  virtual int64_t train_steps() const = 0;                          // a sampler has at most as many steps

  std::string source;      // the file that describes the process, for messages
  std::string class_name;  // diffusers' scheduler, which would draw with its own sampler; may be empty
};

}  // namespace wick
