// The schedule of rectified flows, against diffusers 0.39's FlowMatchEulerDiscreteScheduler.
#include "wick/pipelines/rectified_flow.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "io/files.h"
#include "wick/core/error.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

RectifiedFlow parse(const std::string& settings, SigmaGrid grid = SigmaGrid::uniform) {
  return {Config::parse(settings, "scheduler_config.json"), grid};
}

const Shape kLatents{2, 64, 64, 16};  // 1024 tokens

void expect_sigmas(const RectifiedFlow& flow, const std::vector<double>& expected) {
  const std::vector<double> found = flow.sigmas(4, flow.shift(kLatents));
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6) << i;
}

TEST(RectifiedFlow, HasTheSigmasOfDiffusers) {
  const std::string dynamic = R"("use_dynamic_shifting": true)";
  expect_sigmas(parse(R"({"shift": 3})", SigmaGrid::from_table), {1, 0.8576923, 0.6021506, 0.008928572, 0});
  expect_sigmas(parse(R"({"shift": 3})"), {1, 0.9, 0.75, 0.5, 0});
  expect_sigmas(parse("{" + dynamic + "}"), {1, 0.8492348, 0.6524894, 0.3849447, 0});
  expect_sigmas(parse("{" + dynamic + R"(, "time_shift_type": "linear"})"), {1, 0.6539792, 0.3865031, 0.1735537, 0});
  expect_sigmas(parse("{" + dynamic + R"(, "shift_terminal": 0.02})"), {1, 0.7597779, 0.4462931, 0.02, 0});
  expect_sigmas(parse(R"({"shift": 2, "shift_terminal": 0.1})"), {1, 0.7857143, 0.5, 0.1, 0});
}

TEST(RectifiedFlow, GoesStraightToNoise) {
  const Tensor latents = Tensor::of(std::vector<float>{1, 2, 3, 4}, {2, 1, 2, 1}),
               noise = Tensor::of(std::vector<float>{5, 4, -1, 0}, {2, 1, 2, 1});
  const Noised noised = parse("{}").noised(latents, noise, Tensor::of(std::vector<float>{0.25f, 0.5f}, {2}));
  EXPECT_EQ(noised.sample.to_vector(), (std::vector<float>{2, 2.5f, 1, 2}));
  EXPECT_EQ(noised.timestep.to_vector(), (std::vector<float>{250, 500}));
  EXPECT_EQ(noised.target.to_vector(), (std::vector<float>{4, 2, -4, -4}));
}

// Esser et al., section 3.1: one number of the stream for each time.
TEST(RectifiedFlow, DrawsItsTimes) {
  const auto expect_times = [](const RectifiedFlow& flow, const TimestepOptions& options, auto&& expected) {
    constexpr int64_t kCount = 50;
    const bool is_normal = options.kind == TimestepKind::logit_normal;
    Rng rng(7, Stream::timestep), same(7, Stream::timestep);
    const std::vector<float> found = flow.draw_times({kCount, 64, 64, 16}, rng, options).to_vector(),
                             drawn = (is_normal ? random_normal({kCount}, same) : random_uniform({kCount}, same))
                                         .to_vector();
    EXPECT_EQ(rng.position(), same.position());
    for (size_t i = 0; i < drawn.size(); ++i) EXPECT_NEAR(found[i], expected(double(drawn[i])), 1e-6) << drawn[i];
  };
  const auto shifted = [](double t, double k) { return 1 / (1 + (1 / t - 1) / k); };
  const auto normal = [](double mean, double deviation) {
    return [=](double z) { return 1 / (1 + std::exp(-mean - deviation * z)); };
  };
  const RectifiedFlow fixed = parse(R"({"shift": 3})"), dynamic = parse(R"({"use_dynamic_shifting": true})");
  expect_times(fixed, {}, normal(std::log(3), 1));
  expect_times(dynamic, {}, normal(0.63, 1));
  expect_times(dynamic, {.shift = 2}, normal(std::log(2), 1));
  expect_times(fixed, {.mean = -0.5, .deviation = 2}, normal(-0.5, 2));  // the mean replaces the shift
  expect_times(fixed, {.kind = TimestepKind::uniform}, [&](double u) { return shifted(u, 3); });
  expect_times(dynamic, {.kind = TimestepKind::uniform, .shift = 1.5}, [&](double u) { return shifted(u, 1.5); });
  expect_times(fixed, {.kind = TimestepKind::mode}, [&](double u) {
    const double cosine = std::cos(std::numbers::pi * u / 2);
    return shifted(1 - u - 1.29 * (cosine * cosine - 1 + u), 3);
  });
  // A range behind the shift is sd-scripts' for SD3, one before it OneTrainer's.
  const auto scaled = [](double t) { return 0.2 + 0.5 * t; };
  const auto bounded = [](TimestepOptions options) {
    options.first = 200, options.last = 700;
    return options;
  };
  const TimestepRange before = TimestepRange::drawn;
  const TimestepKind uniform = TimestepKind::uniform;
  expect_times(fixed, bounded({.kind = uniform}), [&](double u) { return scaled(shifted(u, 3)); });
  expect_times(fixed, bounded({.kind = uniform, .range = before}), [&](double u) { return shifted(scaled(u), 3); });
  expect_times(fixed, bounded({}), [&](double z) { return scaled(normal(std::log(3), 1)(z)); });
  expect_times(fixed, bounded({.range = before}), [&](double z) { return shifted(scaled(normal(0, 1)(z)), 3); });
  expect_times(fixed, bounded({.mean = 0.4, .range = before}), [&](double z) { return scaled(normal(0.4, 1)(z)); });
  expect_times(fixed, bounded({.shift = 2, .mean = 0.4, .deviation = 0.5, .range = before}),
               [&](double z) { return shifted(scaled(normal(0.4, 0.5)(z)), 2); });
}

TEST(RectifiedFlow, RefusesOtherSchedules) {
  const auto refused = [](const std::string& settings, std::initializer_list<std::string_view> parts) {
    expect_error([&] { parse(settings); }, parts);
  };
  refused(R"({"_class_name": "EulerDiscreteScheduler"})", {"scheduler_config.json", "rectified flow", "\"Euler"});
  for (const std::string key :
       {"use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "invert_sigmas", "stochastic_sampling"})
    refused("{\"" + key + "\": true}", {"scheduler_config.json", key, "false"});
  refused(R"({"use_dynamic_shifting": true, "time_shift_type": "cubic"})", {"time_shift_type", "cubic"});
  refused(R"({"use_dynamic_shifting": true, "max_image_seq_len": 256})", {"max_image_seq_len", "256"});
  refused(R"({"shift": 0})", {"shift"});
  refused(R"({"shift_terminal": 1})", {"shift_terminal"});
  expect_error([] { parse("{}").sampler({.steps = 1001}, kLatents); }, {"1000 steps", "1001"});
  expect_error([] { parse("{}").sampler({.kind = SamplerKind::ddim}, kLatents); }, {"--sampler ddim", "dpmpp-2m"});
}

}  // namespace
}  // namespace wick
