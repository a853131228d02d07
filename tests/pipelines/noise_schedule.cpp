#include "wick/pipelines/noise_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "io/files.h"
#include "pipelines/golden.h"

namespace wick {
namespace {

NoiseSchedule parse(const std::string& json) { return NoiseSchedule(Config::parse(json, "scheduler_config.json")); }

TEST(NoiseSchedule, AgreesWithDiffusers) {
  const NoiseSchedule schedule = NoiseSchedule::read(kGolden / "sdxl");
  const Tensor expected = open_golden("samplers/schedulers").load("alphas_cumprod");
  const auto& alphas = schedule.alphas_cumprod();
  EXPECT_LE(relative_error(std::vector<float>(alphas.begin(), alphas.end()), expected.to_vector()), 1e-6);
  EXPECT_EQ(schedule.spacing, TimestepSpacing::leading);
  EXPECT_EQ(schedule.steps_offset, 1);
}

TEST(NoiseSchedule, LinearBetas) {
  const NoiseSchedule schedule =
      parse(R"({"beta_schedule": "linear", "beta_start": 0.1, "beta_end": 0.3, "num_train_timesteps": 3})");
  EXPECT_NEAR(schedule.alpha_cumprod(2), 0.9 * 0.8 * 0.7, 1e-12);
  EXPECT_NEAR(schedule.sigma(0), std::sqrt(0.1 / 0.9), 1e-12);
}

// As get_timesteps() of kohya-ss/sd-scripts: each of [first, last) in equal shares, or all at `last`.
TEST(NoiseSchedule, DrawsTimesOfARange) {
  const NoiseSchedule schedule = NoiseSchedule::read(kGolden / "sdxl");
  const auto drawn = [&](int64_t first, std::optional<int64_t> last, int64_t count) {
    Rng rng(7, Stream::timestep);
    const Tensor times = schedule.draw_times({count, 1, 1, 4}, rng, {.first = first, .last = last});
    return std::vector(times.data<int64_t>(), times.data<int64_t>() + count);
  };
  constexpr int64_t kCount = 8000;
  std::map<int64_t, int64_t> found;
  for (const int64_t time : drawn(200, 208, kCount)) ++found[time];
  EXPECT_EQ(found.begin()->first, 200);
  EXPECT_EQ(found.rbegin()->first, 207);
  // Six standard deviations of a count of 1 in 8.
  for (const auto& [time, count] : found) EXPECT_NEAR(double(count), kCount / 8.0, 6 * std::sqrt(kCount * 7.0 / 64));
  EXPECT_EQ(drawn(500, 500, 3), (std::vector<int64_t>{500, 500, 500}));
  EXPECT_EQ(drawn(0, 1000, 50), drawn(0, {}, 50));
}

TEST(NoiseSchedule, AddsNoiseByEachSamplesTimestep) {
  const NoiseSchedule schedule = NoiseSchedule::read(kGolden / "sdxl");
  const Shape shape{3, 1, 2, 1};
  const Tensor latents = Tensor::of(std::vector<float>{1, 2, 3, 4, 5, 6}, shape);
  const Tensor noise = Tensor::of(std::vector<float>{6, 5, 4, 3, 2, 1}, shape);
  const std::vector<int64_t> timesteps{0, 999, 500};
  const std::vector<float> noisy = schedule.noised(latents, noise, Tensor::of(timesteps, {3})).sample.to_vector();
  for (size_t i = 0; i < noisy.size(); ++i) {
    const double alpha = schedule.alpha_cumprod(timesteps[i / 2]);
    EXPECT_NEAR(noisy[i], std::sqrt(alpha) * double(i + 1) + std::sqrt(1 - alpha) * double(6 - i), 1e-6);
  }
}

TEST(NoiseSchedule, RejectsOtherProcesses) {
  expect_error([] { parse(R"({"prediction_type": "sample"})"); },
               {"scheduler_config.json", "prediction_type", "epsilon", "v_prediction", "sample"});
  expect_error([] { parse(R"({"beta_schedule": "squaredcos_cap_v2"})"); }, {"beta_schedule", "squaredcos_cap_v2"});
  expect_error([] { parse(R"({"timestep_spacing": "random"})"); }, {"timestep_spacing", "leading", "random"});
  expect_error([] { parse(R"({"rescale_betas_zero_snr": true})"); }, {"rescale_betas_zero_snr", "v_prediction"});
  expect_error([] { parse(R"({"use_beta_sigmas": true})"); }, {"use_beta_sigmas", "false"});
  expect_error([] { parse(R"({"trained_betas": [0.1]})"); }, {"trained_betas", "null"});
  expect_error([] { parse(R"({"beta_start": 0.5, "beta_end": 0.1})"); }, {"beta_start", "0.5", "0.1"});
  expect_error([] { parse(R"({"num_train_timesteps": 0})"); }, {"num_train_timesteps"});
}

// Which sigmas are visited is the sampler's.
TEST(NoiseSchedule, KarrasSigmasAreTheSameProcess) {
  EXPECT_EQ(parse(R"({"use_karras_sigmas": true})").alphas_cumprod(), parse("{}").alphas_cumprod());
}

TEST(NoiseSchedule, APredictionStandsInForTheConfigs) {
  const auto read = [](const std::string& json, PredictionSetting asked) {
    return NoiseSchedule(Config::parse(json, "scheduler_config.json"), asked);
  };
  const NoiseSchedule v = read("{}", PredictionSetting::v);
  EXPECT_EQ(v.prediction, Prediction::v);
  EXPECT_EQ(v.alphas_cumprod(), parse("{}").alphas_cumprod());
  EXPECT_EQ(read(R"({"prediction_type": "v_prediction"})", PredictionSetting::epsilon).prediction, Prediction::noise);
  EXPECT_EQ(read(R"({"prediction_type": "sample"})", PredictionSetting::v).prediction, Prediction::v);
  const std::string zero = R"({"prediction_type": "v_prediction", "rescale_betas_zero_snr": true})";
  EXPECT_EQ(read(zero, PredictionSetting::v).alpha_cumprod(999), 0);
  const NoiseSchedule asked = read("{}", PredictionSetting::v_zero_snr);
  EXPECT_EQ(asked.prediction, Prediction::v);
  EXPECT_EQ(asked.alphas_cumprod(), read(zero, PredictionSetting::v).alphas_cumprod());
  EXPECT_EQ(asked.spacing, TimestepSpacing::trailing) << "a sampler has to visit the last timestep";
  expect_error([&] { read(zero, PredictionSetting::epsilon); }, {"rescale_betas_zero_snr", "--prediction should be v"});
}

// The defaults of diffusers' constructors.
TEST(NoiseSchedule, ClassesHaveTheirDefaults) {
  const auto of = [](const std::string& name) { return parse(R"({"_class_name": ")" + name + "\"}"); };
  EXPECT_NEAR(of("PNDMScheduler").alpha_cumprod(0), 1 - 0.0001, 1e-12);
  for (const char* name : {"HeunDiscreteScheduler", "DPMSolverSDEScheduler"})
    EXPECT_NEAR(of(name).alpha_cumprod(0), 1 - 0.00085, 1e-12) << name;
  const NoiseSchedule lcm = of("LCMScheduler");
  EXPECT_NEAR(lcm.alpha_cumprod(0), 1 - 0.00085, 1e-12);
  EXPECT_NEAR(lcm.alpha_cumprod(999), 0.0047, 1e-4);  // scaled_linear
  EXPECT_TRUE(lcm.is_distilled);
  EXPECT_TRUE(of("DDIMScheduler").clip_sample);
  EXPECT_FALSE(of("EulerDiscreteScheduler").clip_sample);
  EXPECT_EQ(of("UniPCMultistepScheduler").class_name, "UniPCMultistepScheduler");
  expect_error([&] { of("FlowMatchEulerDiscreteScheduler"); },
               {"scheduler_config.json", "FlowMatchEulerDiscreteScheduler", "Heun"});
}

}  // namespace
}  // namespace wick
