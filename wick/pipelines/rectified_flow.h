// Rectified flow (Liu et al., 2023; Esser et al., 2024): straight lines from a latent x to noise n. At sigma in [0, 1]
// a latent is x + sigma * (n - x), and the model predicts the velocity n - x. Read from the scheduler_config.json of
// diffusers' FlowMatchEulerDiscreteScheduler; computed in double.
//
// A shift s > 1 moves sigmas towards noise, s sigma / (1 + (s - 1) sigma), as pictures of more tokens want it.
#pragma once

#include <optional>

#include "wick/io/config.h"
#include "wick/nn/checkpoint.h"
#include "wick/pipelines/process.h"

namespace wick {

// e^mu, or mu itself, with mu linear in the number of a picture's tokens.
struct DynamicShift {
  double base = 0.5, max = 1.15;  // mu at the two numbers
  int64_t base_tokens = 256, max_tokens = 4096;
  bool exponential = true;

  double operator()(int64_t tokens) const;
};

// The sigmas from which a sampler's are made by shifting.
enum class SigmaGrid {
  uniform,     // 1 to 1/N: FLUX
  from_table,  // between the ends of the training's table, which is shifted itself: SD3
};

class RectifiedFlow final : public Process {
 public:
  // Throws Error for a config of another class, and for settings that change sigmas in ways that Wick does not know.
  RectifiedFlow(const Config& config, SigmaGrid grid);
  // Reads the model's scheduler. Models of single files have none: `known` is its config then, as JSON.
  static RectifiedFlow read(const Checkpoint& model, const char* known, SigmaGrid grid);

  bool is_flow() const override { return true; }
  std::optional<double> fixed_shift() const override { return dynamic_ ? std::nullopt : std::optional(shift_); }
  int64_t train_steps() const override { return train_steps_; }
  double snr(double sigma) const override { return (1 - sigma) * (1 - sigma) / (sigma * sigma); }
  double progress(double sigma) const override { return sigma; }
  double shift(const Shape& latents) const;  // for latents [B, h, w, C], of which a token holds 2 x 2

  // Sigmas f32: one number of `rng` each, a normal z for sigmoid(mean + deviation * z) and a uniform one else.
  Tensor draw_times(const Shape& latents, Rng& rng, const TimestepOptions& options = {}) const override;
  Noised noised(const Tensor& latents, const Tensor& noise, const Tensor& sigmas) const override;
  // Euler's method, and DPM-Solver++ (2M) as Stability's sd3.5 has it: lambda is -ln sigma, and the first and the last
  // step are of first order.
  Sampler sampler(const SamplerOptions& options, const Shape& latents) const override;
  std::vector<double> sigmas(int64_t steps, double shift) const;  // steps + 1, the last is 0

 private:
  int64_t train_steps_;
  double shift_;
  std::optional<DynamicShift> dynamic_;
  std::optional<double> terminal_;  // the last sigma but 0, to which all are stretched
  SigmaGrid grid_;
};

}  // namespace wick
