// The diffusion process of a latent diffusion model (Ho et al., 2020): how much signal and how much noise a latent
// holds at each training timestep. Read from a diffusers scheduler_config.json; computed in double.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "wick/core/tensor.h"
#include "wick/io/config.h"

namespace wick {

// Which of the training timesteps a sampler visits: table 2 of Lin et al., "Common diffusion noise schedules and sample
// steps are flawed", 2023.
enum class TimestepSpacing { leading, trailing, linspace };

class NoiseSchedule {
 public:
  // folder/scheduler_config.json; the model_index.json above it tells the class where that does not. Throws Error for a
  // class that describes another process (flow matching, EDM, LCM, ...) or is not known to describe this one.
  static NoiseSchedule read(const std::filesystem::path& folder);
  explicit NoiseSchedule(const Config& config);

  int64_t train_steps() const { return int64_t(alphas_cumprod_.size()); }
  const std::vector<double>& alphas_cumprod() const { return alphas_cumprod_; }
  double alpha_cumprod(int64_t t) const { return alphas_cumprod_[size_t(t)]; }
  double sigma(int64_t t) const;  // the noise-to-signal ratio, sqrt((1 - alpha_cumprod) / alpha_cumprod)

  // What the forward process makes of `latents` [B, ...] at `timesteps` [B] i64, one for each sample:
  // sqrt(alpha_cumprod) latents + sqrt(1 - alpha_cumprod) noise.
  Tensor add_noise(const Tensor& latents, const Tensor& noise, const Tensor& timesteps) const;

  // What only samplers ask for. A config may leave the spacing out: diffusers' default then depends on the sampler.
  std::optional<TimestepSpacing> spacing;
  int64_t steps_offset = 0;
  bool set_alpha_to_one = true;
  bool clip_sample = false;
  bool final_sigma_is_zero = true;
  std::string source;      // the file, for messages
  std::string class_name;  // diffusers' scheduler, which would draw with its own sampler; may be empty

 private:
  NoiseSchedule(const Config& config, const std::string& class_name);

  std::vector<double> alphas_cumprod_;
  Tensor signal_, noise_;  // [train_steps, 1]: the two coefficients of add_noise
};

}  // namespace wick
