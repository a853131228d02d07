// The diffusion process of a latent diffusion model (Ho et al., 2020): how much signal and how much noise a latent
// holds at each training timestep. Read from a diffusers scheduler_config.json; computed in double.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "wick/io/config.h"
#include "wick/nn/checkpoint.h"
#include "wick/pipelines/process.h"

namespace wick {

// Which of the training timesteps a sampler visits: table 2 of Lin et al., "Common diffusion noise schedules and sample
// steps are flawed", 2023.
enum class TimestepSpacing { leading, trailing, linspace };

class NoiseSchedule final : public Process {
 public:
  // Reads the config of the model's scheduler; the pipeline's config names the class if that does not. A model of files
  // alone has SDXL's own schedule, and its tensors "v_pred" and "ztsnr" change it. `asked` overrides the prediction
  // type of the files. Throws Error for a class of another process (flow matching, EDM, ...) and for an unknown class.
  static NoiseSchedule read(const Checkpoint& model, PredictionSetting asked = PredictionSetting::automatic);
  explicit NoiseSchedule(const Config& config, PredictionSetting asked = PredictionSetting::automatic);

  int64_t train_steps() const override { return int64_t(alphas_cumprod_.size()); }
  const std::vector<double>& alphas_cumprod() const { return alphas_cumprod_; }
  double alpha_cumprod(int64_t t) const { return alphas_cumprod_[size_t(t)]; }
  // The noise-to-signal ratio, sqrt((1 - alpha_cumprod) / alpha_cumprod). Where nothing is left of the signal, that of
  // an alpha_cumprod of 2^-24, as in diffusers.
  double sigma(int64_t t) const;
  // The picture by a prediction, where x is the picture + sigma * noise and the model sees it with unit variance.
  Combination estimate(double sigma) const;

  // Timesteps i64, uniform over all of them.
  Tensor draw_times(const Shape& latents, Rng& rng, const TimestepOptions& options = {}) const override;
  // sqrt(alpha_cumprod) latents + sqrt(1 - alpha_cumprod) noise, from which `prediction` is to be found.
  Noised noised(const Tensor& latents, const Tensor& noise, const Tensor& timesteps) const override;
  Sampler sampler(const SamplerOptions& options, const Shape& latents) const override;
  double snr(double timestep) const override;
  double progress(double timestep) const override { return timestep / double(train_steps()); }
  bool predicts_v() const override { return prediction == Prediction::v; }

  // For samplers alone. A config may leave the spacing out: diffusers' default then depends on the sampler.
  std::optional<TimestepSpacing> spacing;
  int64_t steps_offset = 0;
  bool set_alpha_to_one = true;
  bool clip_sample = false;
  bool final_sigma_is_zero = true;
  Prediction prediction = Prediction::noise;
  int64_t original_steps = 50;   // of the model that LCM's was distilled from
  double timestep_scaling = 10;  // of LCM's boundary conditions

 private:
  NoiseSchedule(const Config& config, const std::string& class_name, PredictionSetting asked);

  std::vector<double> alphas_cumprod_;
};

// Karras et al., 2022, algorithm 2 without churn: diffusers' EulerDiscreteScheduler.
Sampler euler_sampler(const NoiseSchedule& schedule, int64_t steps, int64_t skipped = 0);
// Its ancestral variant: diffusers' EulerAncestralDiscreteScheduler.
Sampler euler_ancestral_sampler(const NoiseSchedule& schedule, int64_t steps, int64_t skipped = 0);
// DPM-Solver++(2M) (Lu et al., 2022): diffusers' DPMSolverMultistepScheduler. `karras`: with sigmas whose seventh roots
// are evenly spaced (Karras et al., 2022, equation 5).
Sampler dpmpp_2m_sampler(const NoiseSchedule& schedule, int64_t steps, bool karras, int64_t skipped = 0);
// DPM-Solver++(S) with r = 1/2 and noise after each evaluation: k-diffusion's sample_dpmpp_sde (eta 1, s_noise 1) on
// its DiscreteSchedule, from unit noise times the first sigma. The sigmas are Karras', as A1111 pairs them. Two
// evaluations a step but the last.
Sampler dpmpp_sde_sampler(const NoiseSchedule& schedule, int64_t steps, int64_t skipped = 0);
// UniPC of second order with B(h) = exp(h) - 1, each step corrected by the next estimate (Zhao et al., 2023):
// diffusers' UniPCMultistepScheduler.
Sampler unipc_sampler(const NoiseSchedule& schedule, int64_t steps, int64_t skipped = 0);
// Multistep sampling of a latent consistency model (Luo et al., 2023): diffusers' LCMScheduler.
Sampler lcm_sampler(const NoiseSchedule& schedule, int64_t steps, int64_t skipped = 0);
// Song et al., 2021, with eta = 0: diffusers' DDIMScheduler.
Sampler ddim_sampler(const NoiseSchedule& schedule, int64_t steps, int64_t skipped = 0);

}  // namespace wick
