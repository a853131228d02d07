// Samplers against diffusers' schedulers and k-diffusion on given model outputs.
#include "wick/pipelines/noise_schedule.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "pipelines/golden.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/model_defaults.h"

namespace wick {
namespace {

Tensor row(const Tensor& rows, size_t i) { return slice(rows, 0, int64_t(i), int64_t(i) + 1); }

// What a sampler keeps after a step.
std::vector<Tensor> after(const SamplerStep& step, const std::vector<Tensor>& kept, const Tensor& prediction,
                          const Tensor& draw = {}) {
  std::vector<Tensor> next;
  for (const Combination& sum : step.next) {
    next.push_back(prediction * float(sum.weights[Combination::kPrediction]));
    if (step.draws()) next.back() = next.back() + draw * float(sum.weights[Combination::kDraw]);
    for (size_t i = 0; i < kept.size(); ++i) next.back() = next.back() + kept[i] * float(sum.weights[i]);
  }
  return next;
}

// Takes the steps on the golden's outputs of the model.
void expect_followed(const Sampler& sampler, const SafetensorsFile& golden, const std::string& prefix,
                     double tolerance = 1e-5) {
  const auto expected = [&](const std::string& key) { return golden.load(prefix + key); };
  const Tensor timesteps = expected("timesteps"), outputs = expected("model_outputs");
  const Tensor inputs = expected("scaled_inputs"), trajectory = expected("trajectory");
  ASSERT_EQ(sampler.steps.size(), size_t(timesteps.dim(0)));
  EXPECT_NEAR(sampler.initial_scale / expected("init_noise_sigma").item(), 1, tolerance);
  std::vector<Tensor> kept{row(trajectory, 0)};
  for (size_t i = 0; i < sampler.steps.size(); ++i) {
    const SamplerStep& step = sampler.steps[i];
    EXPECT_EQ(step.timestep, timesteps.to_vector()[i]);
    EXPECT_LE(relative_error(kept.front() * step.input_scale, row(inputs, i)), tolerance) << "step " << i;
    kept = after(step, kept, row(outputs, i));
    EXPECT_LE(relative_error(kept.front(), row(trajectory, i + 1)), tolerance) << "step " << i;
  }
}

struct Case {
  SamplerKind kind;
  const char* name;
  int64_t steps;
};

class Samplers : public testing::TestWithParam<Case> {};

TEST_P(Samplers, FollowDiffusers) {
  const auto [kind, name, steps] = GetParam();
  expect_followed(NoiseSchedule::read(kGolden / "sdxl").sampler({.kind = kind, .steps = steps}, {1, 8, 8, 4}),
                  open_golden("samplers/schedulers"), fmt::format("{}.{}.", name, steps));
}

INSTANTIATE_TEST_SUITE_P(Golden, Samplers,
                         testing::Values(Case{SamplerKind::euler, "euler", 7}, Case{SamplerKind::euler, "euler", 20},
                                         Case{SamplerKind::ddim, "ddim", 7}, Case{SamplerKind::ddim, "ddim", 20}),
                         [](const auto& c) { return fmt::format("{}_{}", c.param.name, c.param.steps); });

// DPMSolverMultistepScheduler keeps x as signal * picture + noise, the sampler as picture + sigma * noise.
TEST(Sampler, OfSecondOrderFollowsDiffusers) {
  const SafetensorsFile golden = open_golden("samplers/solvers");
  for (const char* spacing : {"leading", "trailing", "linspace"})
    for (const char* prediction : {"epsilon", "v_prediction"})
      for (const char* name : {"dpmpp-2m", "dpmpp-2m-karras", "sigma_min"})
        for (const int64_t steps : {1, 5, 16}) {
          const std::string prefix = fmt::format("{}.{}.{}.{}.", name, spacing, prediction, steps);
          SCOPED_TRACE(prefix);
          const NoiseSchedule schedule(
              Config::parse(fmt::format(R"({{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
                "steps_offset": 1, "timestep_spacing": "{}", "prediction_type": "{}", "final_sigmas_type": "{}"}})",
                                        spacing, prediction, name == std::string("sigma_min") ? name : "zero"),
                            "config"));
          const Sampler sampler = dpmpp_2m_sampler(schedule, steps, name == std::string("dpmpp-2m-karras"));
          const auto expected = [&](const char* key) { return golden.load(prefix + key); };
          const std::vector<float> timesteps = expected("timesteps").to_vector();
          const Tensor outputs = expected("model_outputs"), trajectory = expected("trajectory");
          ASSERT_EQ(sampler.steps.size(), timesteps.size());
          std::vector<Tensor> kept{row(trajectory, 0) * sampler.initial_scale, row(trajectory, 0) * 0};
          for (size_t i = 0; i < timesteps.size(); ++i) {
            const SamplerStep& step = sampler.steps[i];
            EXPECT_EQ(step.timestep, timesteps[i]);
            EXPECT_LE(relative_error(kept.front() * step.input_scale, row(trajectory, i)), 1e-5) << "step " << i;
            kept = after(step, kept, row(outputs, i));
          }
          const float end = name == std::string("sigma_min") ? float(1 / std::hypot(schedule.sigma(0), 1)) : 1;
          EXPECT_LE(relative_error(kept.front() * end, row(trajectory, timesteps.size())), 1e-5);
        }
}

// From noise to the end, with draws on the way. All of them end at sigma 0, where diffusers' x is the sampler's.
void expect_drawn(const Sampler& sampler, const SafetensorsFile& golden, const std::string& prefix, double tolerance) {
  SCOPED_TRACE(prefix);
  const auto expected = [&](const char* key) { return golden.load(prefix + key); };
  const std::vector<float> timesteps = expected("timesteps").to_vector();
  const Tensor outputs = expected("outputs"), draws = expected("draws"), noise = expected("noise");
  ASSERT_EQ(sampler.steps.size(), timesteps.size());
  std::vector<Tensor> kept{noise * sampler.initial_scale};
  while (kept.size() < sampler.kept) kept.push_back(noise * 0);
  size_t drawn = 0;
  for (size_t i = 0; i < timesteps.size(); ++i) {
    const SamplerStep& step = sampler.steps[i];
    // A product of 1000 factors in f32 is off by up to 6e-5, and the sigmas' logarithms are 0.006 apart.
    EXPECT_NEAR(step.timestep, timesteps[i], 1e-2) << i;
    kept = after(step, kept, row(outputs, i), step.draws() ? row(draws, drawn++) : Tensor());
  }
  EXPECT_LE(relative_error(kept.front(), expected("last")), tolerance);
}

NoiseSchedule sdxl_with(const std::string& spacing, const std::string& prediction) {
  const bool is_zero = prediction == "zsnr";
  return NoiseSchedule(
      Config::parse(fmt::format(R"({{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
        "steps_offset": 1, "timestep_spacing": "{}", "prediction_type": "{}", "rescale_betas_zero_snr": {}}})",
                                spacing, is_zero ? "v_prediction" : prediction, is_zero),
                    "config"));
}

TEST(Sampler, ThatDrawsFollowsDiffusers) {
  const SafetensorsFile golden = open_golden("samplers/drawing");
  for (const auto& [name, make] :
       {std::pair("euler-ancestral", &euler_ancestral_sampler), {"unipc", &unipc_sampler}, {"lcm", &lcm_sampler}})
    for (const auto& [spacing, prediction] : {std::pair("leading", "epsilon"),
                                              {"leading", "v_prediction"},
                                              {"trailing", "epsilon"},
                                              {"trailing", "v_prediction"},
                                              {"linspace", "epsilon"},
                                              {"linspace", "v_prediction"},
                                              {"trailing", "zsnr"}})
      for (const int64_t steps : {1, 4, 9}) {
        // diffusers has 1 - alpha_cumprod in f32, which at timestep 0 is 0.00085 to 7e-5 of itself, and sigma its root.
        // At zero SNR it takes differences of f32 products, and its LCM no signal at all for 2^-24.
        const double tolerance = prediction == std::string("zsnr") ? 1e-3 : 5e-5;
        expect_drawn(make(sdxl_with(spacing, prediction), steps, 0), golden,
                     fmt::format("{}.{}.{}.{}.", name, spacing, prediction, steps), tolerance);
      }
}

TEST(Sampler, OfTheSdeFollowsKDiffusion) {
  const SafetensorsFile golden = open_golden("samplers/drawing");
  for (const char* prediction : {"epsilon", "v_prediction"})
    for (const int64_t steps : {1, 4, 9})
      expect_drawn(dpmpp_sde_sampler(sdxl_with("leading", prediction), steps), golden,
                   fmt::format("dpmpp-sde.{}.{}.", prediction, steps), 1e-5);
}

// Models that predict v, and such whose last timestep has no signal.
TEST(Sampler, OfVFollowsDiffusers) {
  const SafetensorsFile golden = open_golden("samplers/v_prediction");
  const std::string v = R"({"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
                            "steps_offset": 1, "set_alpha_to_one": false, "prediction_type": "v_prediction", )";
  const std::string leading = v + R"("timestep_spacing": "leading"})",
                    trailing = v + R"("timestep_spacing": "trailing", "rescale_betas_zero_snr": true})";
  for (const auto& [model, json] : {std::pair("v", leading), {"v_zsnr", trailing}}) {
    const NoiseSchedule schedule(Config::parse(json, "config"));
    // diffusers rounds 1000 products to f32 and takes the difference of their roots to the last one.
    const double tolerance = model == std::string("v") ? 1e-5 : 1e-4;
    for (const auto& [name, kind] : {std::pair("euler", SamplerKind::euler), {"ddim", SamplerKind::ddim}}) {
      SCOPED_TRACE(fmt::format("{} {}", model, name));
      expect_followed(schedule.sampler({.kind = kind, .steps = 7}, {1, 8, 8, 4}), golden,
                      fmt::format("{}.{}.", model, name), tolerance);
    }
    const auto given = [&, prefix = fmt::format("{}.", model)](const char* key) { return golden.load(prefix + key); };
    const Noised noised =
        schedule.noised(given("latents"), given("noise"), Tensor::of(std::vector<int64_t>{0, 500, 999}, {3}));
    EXPECT_LE(relative_error(noised.sample, given("noisy")), tolerance) << model;
    EXPECT_LE(relative_error(noised.target, given("velocity")), tolerance) << model;
  }
}

NoiseSchedule with(const std::string& spacing, const std::string& more = "") {
  return NoiseSchedule(Config::parse(R"({"timestep_spacing": ")" + spacing + "\"" + more + "}", "config"));
}

std::vector<float> timesteps(const Sampler& sampler) {
  std::vector<float> ts;
  for (const SamplerStep& step : sampler.steps) ts.push_back(step.timestep);
  return ts;
}

TEST(Sampler, Spacings) {
  EXPECT_EQ(timesteps(euler_sampler(with("leading"), 4)), (std::vector<float>{750, 500, 250, 0}));
  EXPECT_EQ(timesteps(euler_sampler(with("trailing"), 4)), (std::vector<float>{999, 749, 499, 249}));
  EXPECT_EQ(timesteps(euler_sampler(with("linspace"), 5)), (std::vector<float>{999, 749.25, 499.5, 249.75, 0}));
  EXPECT_EQ(timesteps(ddim_sampler(with("linspace"), 5)), (std::vector<float>{999, 749, 500, 250, 0}));
  EXPECT_EQ(timesteps(ddim_sampler(with("trailing"), 3)), (std::vector<float>{999, 666, 332}));
}

TEST(Sampler, EulerStartsFromTheLargestSigma) {
  const NoiseSchedule trailing = with("trailing"), leading = with("leading");
  EXPECT_FLOAT_EQ(euler_sampler(trailing, 10).initial_scale, float(trailing.sigma(999)));
  EXPECT_FLOAT_EQ(euler_sampler(leading, 10).initial_scale, float(std::hypot(leading.sigma(900), 1)));
}

// Steps that need none before them are the same behind skipped ones, and the way begins with the noise of the first.
TEST(Sampler, SkippedStepsAreLeftOut) {
  constexpr int64_t kSteps = 9, kSkipped = 4;
  for (const char* spacing : {"leading", "trailing", "linspace"})
    for (const SamplerKind kind :
         {SamplerKind::euler, SamplerKind::euler_ancestral, SamplerKind::ddim, SamplerKind::dpmpp_2m,
          SamplerKind::dpmpp_2m_karras, SamplerKind::unipc, SamplerKind::dpmpp_sde, SamplerKind::lcm}) {
      const NoiseSchedule schedule = with(spacing);
      const Sampler whole = schedule.sampler({.kind = kind, .steps = kSteps}, {}),
                    late = schedule.sampler({.kind = kind, .steps = kSteps, .skipped = kSkipped}, {});
      const size_t skipped = whole.steps.size() - late.steps.size();
      EXPECT_EQ(skipped, size_t(kind == SamplerKind::dpmpp_sde ? 2 * kSkipped : kSkipped));
      const bool is_multistep =
          kind == SamplerKind::dpmpp_2m || kind == SamplerKind::dpmpp_2m_karras || kind == SamplerKind::unipc;
      for (size_t i = 0; i < late.steps.size(); ++i) {
        const SamplerStep &step = late.steps[i], &same = whole.steps[skipped + i];
        EXPECT_EQ(step.timestep, same.timestep);
        EXPECT_EQ(step.input_scale, same.input_scale);
        if (is_multistep && i < 2) continue;
        for (size_t k = 0; k < late.kept; ++k) EXPECT_EQ(step.next[k].weights, same.next[k].weights) << name_of(kind);
      }
      // The model's first input has unit variance where the picture has it.
      const double scale = late.steps.front().input_scale;
      EXPECT_NEAR(std::hypot(late.of_picture, late.of_noise) * scale, 1, 1e-6) << name_of(kind);
      EXPECT_LT(late.of_noise / late.of_picture, whole.of_noise / whole.of_picture);
    }
  expect_error([] { with("leading").sampler({.steps = 3, .skipped = 3}, {}); }, {"--strength", "3 steps"});
}

TEST(Sampler, RejectsWhatTheScheduleCannotDo) {
  expect_error([] { euler_sampler(with("leading"), 1001); }, {"1000", "1001"});
  expect_error([] { euler_sampler(with("leading"), 0); }, {"1 to 1000", "0"});
  expect_error([] { ddim_sampler(with("leading", R"(, "steps_offset": 1)"), 1000); }, {"1000", "steps_offset"});
  expect_error([] { ddim_sampler(with("leading", R"(, "clip_sample": true)"), 10); }, {"config", "clip_sample"});
  expect_error([] { lcm_sampler(with("leading"), 51); }, {"--sampler lcm", "1 to 50", "51"});
  expect_error([] { lcm_sampler(with("leading", R"(, "clip_sample": true)"), 4); }, {"config", "clip_sample"});
}

}  // namespace
}  // namespace wick
