// How a diffusion model goes from a latent to noise, and back: DDPM's schedule (noise_schedule.h), or a rectified flow
// (rectified_flow.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "wick/core/error.h"
#include "wick/core/rng.h"
#include "wick/core/tensor.h"

namespace wick {

// A sum of latents: what a sampler keeps between steps, of which x is the first, the model's prediction, and a draw of
// fresh noise of unit variance.
struct Combination {
  static constexpr size_t kMostKept = 4, kPrediction = kMostKept, kDraw = kMostKept + 1, kTerms = kMostKept + 2;

  static Combination term(size_t index) {
    Combination c;
    c.weights[index] = 1;
    return c;
  }
  static Combination kept(size_t index) { return term(index); }
  static Combination x() { return kept(0); }
  static Combination prediction() { return term(kPrediction); }
  static Combination draw() { return term(kDraw); }

  friend Combination operator+(Combination a, const Combination& b) {
    for (size_t i = 0; i < kTerms; ++i) a.weights[i] += b.weights[i];
    return a;
  }
  friend Combination operator*(Combination a, double factor) {
    for (double& weight : a.weights) weight *= factor;
    return a;
  }
  friend Combination operator-(const Combination& a, const Combination& b) { return a + b * -1; }

  std::array<double, kTerms> weights{};
};

// Samplers go from noise to a latent, in the numerics of diffusers or k-diffusion. All of them are linear in the
// latents and predictions that they have met. So a sampler is a list of combinations, worked out in double before the
// first step.
struct SamplerStep {              // an evaluation of the model
  float timestep;                 // the model's input; between integers for Euler with linspace spacing
  float input_scale;              // the model sees input_scale * x
  std::vector<Combination> next;  // what is kept after it, as many as Sampler::kept
  bool is_midway = false;         // a step of the user's goes on with the next one

  bool draws() const {
    return std::ranges::any_of(next, [](const Combination& c) { return c.weights[Combination::kDraw] != 0; });
  }
};

struct Sampler {
  float initial_scale;  // standard deviation of the first x, which is noise
  std::vector<SamplerStep> steps;
  size_t kept = 1;                     // latents, all but x zero at first
  float of_picture = 1, of_noise = 0;  // shares of the first x where it is a picture with noise

  bool uses(size_t latent, size_t term) const {  // in any step
    return std::ranges::any_of(steps, [&](const SamplerStep& s) { return s.next[latent].weights[term] != 0; });
  }
};

// From sigma to `next`, where x is the picture + sigma * noise: Euler's step by an estimate of the picture.
Combination euler_step(double sigma, double next, const Combination& estimate,
                       const Combination& from = Combination::x());
// DPM-Solver++(2M)'s (Lu et al., 2022; in the form of k-diffusion's sample_dpmpp_2m): `before` is the sigma of the step
// before, `last` the estimate there.
Combination second_order_estimate(double before, double sigma, double next, const Combination& estimate,
                                  const Combination& last);
Combination second_order_step(double before, double sigma, double next, const Combination& estimate,
                              const Combination& last);

enum class SamplerKind { euler, euler_ancestral, dpmpp_2m, dpmpp_2m_karras, dpmpp_sde, ddim, unipc, lcm };

struct SamplerOptions {
  SamplerKind kind = SamplerKind::euler;
  int64_t steps = 30;
  int64_t skipped = 0;               // of these, the first: the way begins with a picture and the noise that is left
  std::optional<double> shift = {};  // of a rectified flow, in place of its own
};

inline void check_skipped(const SamplerOptions& options) {
  check_usage(0 <= options.skipped && (options.skipped == 0 || options.skipped < options.steps),
              "--strength: at least one of the {} steps has to be taken, a higher strength or more --steps bring it",
              options.steps);
}

// How training draws the times of a rectified flow (Esser et al., 2024, section 3.1).
enum class TimestepKind { logit_normal, uniform, mode };
inline constexpr double kModeScale = 1.29;
// Where a range bounds the times of a rectified flow: behind the shift, as library/sd3_train_utils.py of
// kohya-ss/sd-scripts has it, or before it, as ModelSetupNoiseMixin.py of OneTrainer has it.
enum class TimestepRange { shifted, drawn };
struct TimestepOptions {
  TimestepKind kind = TimestepKind::logit_normal;
  std::optional<double> shift = {};  // none: the process's own for the picture's size
  std::optional<double> mean = {};   // of the logit, in place of the shift's logarithm
  double deviation = 1;              // of the logit
  // Times are in [first, last) of train_steps(), and `last` where the two are equal; those of a rectified flow are
  // first + (last - first) t for times t of all.
  int64_t first = 0;
  std::optional<int64_t> last = {};  // none: train_steps()
  TimestepRange range = TimestepRange::shifted;
};

struct Noised {     // B latents somewhere between signal and noise
  Tensor sample;    // [B, h, w, C], the model's input
  Tensor timestep;  // [B] f32, its time, in the latents' memory
  Tensor target;    // [B, h, w, C], of its prediction
};

// The quantity that a model of DDPM's predicts: the noise, or v, which is sqrt(alpha_cumprod) noise - sqrt(1 -
// alpha_cumprod) latent (Salimans and Ho, "Progressive distillation", 2022).
enum class Prediction { noise, v };
// The user's choice of the prediction type: as the files say (automatic), or one that overrides them. With v_zero_snr
// the last timestep has no signal (Lin et al., 2023).
enum class PredictionSetting { automatic, epsilon, v, v_zero_snr };

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
  // At a time of the process: the ratio of the variances of signal and noise, and how much of the way to noise lies
  // behind it, in [0, 1].
  virtual double snr(double time) const = 0;
  virtual double progress(double time) const = 0;
  virtual bool predicts_v() const { return false; }                 // Prediction::v
  virtual std::optional<double> fixed_shift() const { return {}; }  // a flow's, if pictures of all sizes have one
  // Steps to skip so that a picture becomes another by that strength, in (0, 1], as in diffusers' pipelines.
  int64_t skipped(int64_t steps, double strength) const {
    const double taken = std::min(double(steps) * strength, double(steps));
    return is_flow() ? int64_t(double(steps) - taken) : steps - int64_t(taken);
  }
  virtual int64_t train_steps() const = 0;  // a sampler has at most as many steps

  std::string source;         // the file that describes the process, for messages
  std::string class_name;     // diffusers' scheduler, which would draw with its own sampler; may be empty
  bool is_distilled = false;  // the model leaps over many steps at once, which this process cannot teach
};

}  // namespace wick
