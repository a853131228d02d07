// The losses of training.
#pragma once

#include <cstdint>
#include <optional>

#include "wick/models/vae.h"
#include "wick/pipelines/diffusion.h"
#include "wick/train/train_rng.h"

namespace wick {

// B examples of one size.
struct Batch {
  Tensor latents;             // [B, h, w, C] in the model's memory
  NamedTensors conditioning;  // the model's own, not yet encoded where it trains its text encoders
  Tensor weights = {};        // of the loss, f32 [B, h, w, 1] or [B, 1, 1, 1] in the model's memory; none: all are 1
  std::optional<uint64_t> number = {};  // of the first example among a run's samples (SampledBatch)
};

// The parts of a noised batch, beside its conditioning, as Noised has them.
inline constexpr const char *kNoisedLatents = "noised latents", *kTimesteps = "timesteps", *kTarget = "target",
                            *kLossWeights = "loss weights", *kHuberC = "huber c";

// What is added to the noise of unit variance.
struct NoiseOptions {
  double offset = 0;  // times a normal number for each channel (Guttenberg, "Offset noise", 2023)
  // Added to offset for each channel, times the size of the channel's mean in the latents; the sum is at least 0
  // (kohya-ss/sd-scripts, library/custom_train_functions.py).
  double adaptive_offset = 0;
  int64_t pyramid_iterations = 0;  // coarser noises, the i-th times discount^i (Whitaker, "Multires noise", 2023)
  double pyramid_discount = 0.3;
  double input_gamma = 0;  // times other noise, in the model's input and not in its target (Ning et al., 2023)
};

enum class LossType { l2, l1, huber, smooth_l1 };
// How Huber's c changes on the way to noise: not; from 1 down to c; or from 1 to c with the noise-to-signal ratio.
enum class HuberSchedule { constant, exponential, snr };
// The weight of the loss at sigma, for rectified flows: 1, 1 / sigma^2, 2 / (pi (1 - 2 sigma + 2 sigma^2)) (Esser et
// al., 2024), or sigma^2, which is the squared error of the picture that the velocity points to.
enum class WeightingScheme { none, sigma_sqrt, cosmap, sigma_squared };

// How a denoiser's error becomes a loss. All formulas are those of kohya-ss/sd-scripts.
struct Objective {
  TimestepOptions times = {};
  NoiseOptions noise = {};
  // The error e of an element becomes e^2, |e|, or 2 c (sqrt(e^2 + c^2) - c), and smoothly 2 (sqrt(e^2 + c^2) - c).
  LossType type = LossType::l2;
  HuberSchedule huber_schedule = HuberSchedule::snr;
  double huber_c = 0.1, huber_scale = 1;
  double min_snr_gamma = 0;   // 0: none. min(SNR, gamma) / SNR, and / (SNR + 1) for v (Hang et al., 2023)
  bool debiased = false;      // 1 / sqrt(SNR), and 1 / (SNR + 1) for v (Yu et al., 2023); of an SNR of at most 1000
  bool v_like_noise = false;  // SNR / (SNR + 1), of an SNR of at most 1000: the error of v as that of the noise
  WeightingScheme weighting = WeightingScheme::none;

  bool weighs_times() const {
    return min_snr_gamma > 0 || debiased || v_like_noise || weighting != WeightingScheme::none;
  }
  bool has_huber() const { return type == LossType::huber || type == LossType::smooth_l1; }
  double weight(const Process& process, double time) const;
  double huber_c_at(const Process& process, double time) const;
};

// The inputs of a step, with noise and times drawn or given.
NamedTensors noised(const Process& process, const Batch& batch, TrainRng& rng, const Objective& objective = {});
NamedTensors noised(const Process& process, const Batch& batch, const Tensor& noise, const Tensor& times);

// The mean error of the prediction for a noised batch: with DDPM's process and squares the simplified objective of Ho
// et al., 2020, equation 14. With weights the mean of the errors times them: where those are 0, it counts a 0. Text
// encoders that are trained run under the tape.
Tensor denoising_loss(const Diffusion& model, const NamedTensors& noised_batch, LossType type = LossType::l2);
Tensor denoising_loss(const Diffusion& model, const Batch& batch, TrainRng& rng);

// The VAE's negative evidence bound (Kingma & Welling, 2014), as means over elements: the squared error of the pictures
// that come back, plus kl_weight times the divergence of the posterior from a unit normal. pictures [B, H, W, 3], noise
// of the latents' shape.
Tensor autoencoder_loss(const VaeEncoder& encoder, const VaeDecoder& decoder, const Tensor& pictures, float kl_weight,
                        const Tensor& noise);

}  // namespace wick
