// Fifty steps of each optimizer against those of the programs that published them (tools/golden/optimizers.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "device.h"
#include "source_dir.h"
#include "wick/core/dynamic_map.h"
#include "wick/io/safetensors.h"
#include "wick/ops/ops.h"
#include "wick/train/optimizer.h"

namespace wick {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();
// Of the CPU, or another folder that the script wrote.
const std::filesystem::path kGolden = std::getenv("WICK_TEST_OPTIMIZERS")
                                          ? std::filesystem::path(std::getenv("WICK_TEST_OPTIMIZERS"))
                                          : test::source_dir() / "tests/golden/optimizers";

// A run of the script, and its settings beside rate and decay.
struct GoldenRun {
  OptimizerKind kind;
  const char* row = "";
  std::vector<std::pair<const char*, std::vector<std::string>>> settings = {};

  std::string name() const {
    return fmt::format("{}{}{}", name_of(kind), std::string_view(row).empty() ? "" : ".", row);
  }
};

class GoldenOptimizer : public testing::TestWithParam<GoldenRun> {
 protected:
  GoldenOptimizer()
      : in_(SafetensorsFile::open(kGolden / "in.safetensors")),
        out_(SafetensorsFile::open(kGolden / (GetParam().name() + ".out.safetensors"))) {
    TrainConfig& c = config_;
    c.optimizer = kind();
    c.warmup.value = kind() == OptimizerKind::schedule_free ? std::stoi(in_.metadata().at("warmup")) : 0;
    c.weight_decay = kind() == OptimizerKind::adamw8bit && in_.metadata().at("device") == "cpu" ? 0 : 0.1;
    c.max_grad_norm = std::stod(in_.metadata().at("max_grad_norm"));
    if (c.optimizer == OptimizerKind::prodigy)
      c.lr = default_lr(c.optimizer);
    else
      c.lr = c.optimizer == OptimizerKind::lion || c.optimizer == OptimizerKind::lion8bit ? 1e-3 : 1e-2;
    for (const auto& [key, words] : GetParam().settings) option_named(key).set(c, words);
    for (const char* name : {"matrix", "vector", "kernel", "wide", "large"})
      if (out_.tensors().contains(name))
        parameters_.push_back({name, in_.load("start." + std::string(name)).to(test::memory()).trainable()});
  }

  static OptimizerKind kind() { return GetParam().kind; }

  Grads gradients(int64_t step) const {
    Grads grads;
    for (const Parameter& p : parameters_) {
      std::vector<float> values = in_.load("base." + p.name).to_vector();
      const std::vector<float> noise = in_.load("noise." + p.name).to_vector();
      const size_t n = values.size(), turned = size_t(17 * step) % n;
      for (size_t i = 0; i < n; ++i) values[i] += 0.5f * noise[(i + n - turned) % n];
      grads.add(p.value, Tensor::of(values, p.value.shape(), test::memory()));
    }
    return grads;
  }

  void expect_near(const Tensor& got, const std::string& name, double tolerance) const {
    const std::vector<float> a = got.to_vector(), b = out_.load(name).to_vector();
    ASSERT_EQ(a.size(), b.size()) << name;
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double(a[i]) - double(b[i])));
    EXPECT_LE(most, tolerance) << name;
  }

  // The root of the mean square of what is between them, beside that of the tensor.
  void expect_near_on_average(const Tensor& got, const std::string& name, double tolerance) const {
    const std::vector<float> a = got.to_vector(), b = out_.load(name).to_vector();
    double apart = 0, size = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      apart += std::pow(double(a[i]) - double(b[i]), 2);
      size += std::pow(double(b[i]), 2);
    }
    EXPECT_LE(std::sqrt(apart / size), tolerance) << name;
  }

  // Few codes differ, and by one. bitsandbytes' CPU kernel finds a number's by 16 of its bits: there a few more do, and
  // near zero, where values lie closer than that, by more.
  void expect_codes(const Tensor& got, const std::string& name, const DynamicMap& map) const {
    const Tensor host = got.to(host_memory()), want = out_.load(name);
    const bool exact = in_.metadata().at("device") != "cpu";
    int64_t different = 0;
    for (int64_t i = 0; i < want.numel(); ++i) {
      const int ours = host.data<uint8_t>()[i], theirs = want.data<uint8_t>()[i];
      const bool alike = !exact && std::abs(map.values[ours] - map.values[theirs]) < 0x1p-15f;
      EXPECT_TRUE(std::abs(ours - theirs) <= 1 || alike) << name << " at " << i << ": " << ours << " and " << theirs;
      different += ours != theirs;
    }
    EXPECT_LE(double(different), (exact ? 0.001 : 0.01) * double(want.numel())) << name;
  }
  void expect_map(const std::string& name, const DynamicMap& map) const {
    const std::vector<float> values = out_.load(name).to_vector();
    EXPECT_EQ(values, std::vector<float>(map.values, map.values + 256)) << name;
  }

  SafetensorsFile in_, out_;
  TrainConfig config_;
  std::vector<Parameter> parameters_;
};

TEST_P(GoldenOptimizer, FiftyStepsAreThoseOfItsProgram) {
  Optimizer optimizer(parameters_, OptimizerOptions::of(config_));
  const int64_t steps = std::stoi(in_.metadata().at("steps"));
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.set(float(learning_rate(config_, step)));
    optimizer.update(gradients(step));
    if (kind() == OptimizerKind::prodigy) {
      const double d = double(optimizer.scalars().to_vector()[kProdigyD]);
      EXPECT_NEAR(d / double(out_.load("d").to_vector()[size_t(step)]), 1, 1e-4) << "after step " << step + 1;
    }
  }
  // Parameters move by at most about the rate a step, and both programs round each step. Prodigy's rate is d, whose
  // first values are lost in that.
  const bool is_prodigy = kind() == OptimizerKind::prodigy;
  const double rate = is_prodigy ? double(optimizer.scalars().to_vector()[kProdigyD]) : config_.lr.value;
  const double tolerance = double(steps) * rate * (is_prodigy ? 1e-4 : double(steps) * kEps);
  for (const Parameter& p : parameters_)
    if (p.name == "large")
      expect_near_on_average(p.value, p.name, 0.02);
    else
      expect_near(p.value, p.name, tolerance);
  if (!is_schedule_free(kind())) return;
  optimizer.swap_averages();
  for (const Parameter& p : parameters_) expect_near(p.value, "x." + p.name, tolerance);
}

class GoldenOptimizerOf8Bits : public GoldenOptimizer {};

// The last step, from bitsandbytes' own codes.
TEST_P(GoldenOptimizerOf8Bits, StatesAreThoseOfBitsandbytes) {
  Optimizer optimizer(parameters_, OptimizerOptions::of(config_));
  const int64_t steps = std::stoi(in_.metadata().at("steps"));
  const auto golden_name = [](const std::string& name) { return name == "param.large" ? "large" : name; };
  for (const auto& [name, value, shape, dtype, owner] : optimizer.states())
    if (name.ends_with(".large"))
      value.backend().copy(value.detached(), out_.load("before." + golden_name(name)).to(value.memory()));
  const float before = float(steps - 1);
  const Tensor counted = optimizer.scalars().window({1}, {1}, kSteps);
  counted.memory().write(counted.view().data, &before, sizeof before);
  optimizer.set(float(config_.lr.value));
  optimizer.update(gradients(steps - 1));
  expect_map("map.m", kSignedMap);
  if (out_.tensors().contains("map.v")) expect_map("map.v", kUnsignedMap);
  for (const auto& [name, value, shape, dtype, owner] : optimizer.states()) {
    if (!name.ends_with(".large")) continue;
    if (value.dtype() == DType::u8)
      expect_codes(value, name, name.starts_with("m.") ? kSignedMap : kUnsignedMap);
    else
      expect_near(value, golden_name(name), 4 * kEps);
  }
}

std::vector<GoldenRun> golden_runs() {
  using Kind = OptimizerKind;
  std::vector<GoldenRun> all;
  for (size_t i = 0; i < split_names(names_of(Kind{})).size(); ++i) all.push_back({Kind(i)});
  all.insert(
      all.end(),
      {{Kind::adamw, "betas", {{"betas", {"0.8", "0.95"}}, {"eps", {"1e-3"}}}},
       {Kind::adamw8bit, "betas", {{"betas", {"0.8", "0.95"}}, {"eps", {"1e-3"}}}},
       {Kind::lion, "betas", {{"betas", {"0.95", "0.8"}}}},
       {Kind::lion8bit, "betas", {{"betas", {"0.95", "0.8"}}}},
       {Kind::adafactor, "relative", {{"adafactor_relative_step", {"true"}}, {"adafactor_scale_parameter", {"true"}}}},
       {Kind::adafactor,
        "warmup",
        {{"adafactor_relative_step", {"true"}},
         {"adafactor_scale_parameter", {"true"}},
         {"adafactor_warmup_init", {"true"}},
         {"eps", {"1e-2", "0.5"}},
         {"adafactor_clip_threshold", {"0.7"}},
         {"adafactor_decay_rate", {"-0.6"}}}},
       {Kind::adafactor, "scaled", {{"adafactor_scale_parameter", {"true"}}}},
       {Kind::prodigy,
        "plain",
        {{"lr", {"0.1"}},
         {"betas", {"0.9", "0.999"}},
         {"prodigy_use_bias_correction", {"false"}},
         {"prodigy_safeguard_warmup", {"false"}},
         {"prodigy_growth_rate", {"1.1"}}}},
       {Kind::prodigy,
        "coupled",
        {{"betas", {"0.8", "0.95", "0.9"}},
         {"eps", {"1e-3"}},
         {"prodigy_decouple", {"false"}},
         {"prodigy_safeguard_warmup", {"false"}},
         {"prodigy_d0", {"1e-5"}},
         {"prodigy_d_coef", {"0.5"}},
         {"prodigy_slice_p", {"3"}}}},
       {Kind::prodigy,
        "growth",
        {{"betas", {"0.9", "0.999"}}, {"prodigy_use_bias_correction", {"false"}}, {"prodigy_growth_rate", {"1.2"}}}},
       {Kind::schedule_free,
        "weights",
        {{"betas", {"0.95", "0.98"}},
         {"eps", {"1e-3"}},
         {"schedule_free_r", {"1.5"}},
         {"schedule_free_weight_lr_power", {"1"}}}},
       {Kind::radam_schedule_free,
        "weights",
        {{"betas", {"0.95", "0.98"}},
         {"eps", {"1e-3"}},
         {"schedule_free_r", {"1"}},
         {"schedule_free_weight_lr_power", {"0"}}}}});
  return all;
}

std::vector<GoldenRun> golden_runs_of_8_bits() {
  std::vector<GoldenRun> runs = golden_runs();
  std::erase_if(runs, [](const GoldenRun& run) {
    return run.kind != OptimizerKind::adamw8bit && run.kind != OptimizerKind::lion8bit;
  });
  return runs;
}

std::string name_of_run(const testing::TestParamInfo<GoldenRun>& each) {
  std::string name = each.param.name();
  std::erase(name, '-');
  std::ranges::replace(name, '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Each, GoldenOptimizer, testing::ValuesIn(golden_runs()), name_of_run);
INSTANTIATE_TEST_SUITE_P(Each, GoldenOptimizerOf8Bits, testing::ValuesIn(golden_runs_of_8_bits()), name_of_run);

}  // namespace
}  // namespace wick
