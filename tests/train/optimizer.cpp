// AdamW, clipping, accumulation and the moving average, each against its formula in double; the states of all rules.
#include "wick/train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "device.h"
#include "io/files.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

struct Scalar {  // AdamW of one number
  double p, m = 0, v = 0;
  int step = 0;
  void update(double g, double lr, double decay) {
    ++step;
    p -= lr * decay * p;
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    p -= lr * (m / (1 - std::pow(0.9, step))) / (std::sqrt(v / (1 - std::pow(0.999, step))) + 1e-8);
  }
};

Tensor vector(const std::vector<float>& values) { return Tensor::of(values, {int64_t(values.size())}, test::memory()); }

Grads gradient_of(const Tensor& parameter, const std::vector<float>& values) {
  Grads grads;
  grads.add(parameter, vector(values));
  return grads;
}

Tensor state_of(const Optimizer& optimizer, const std::string& name) {
  for (const Optimizer::State& state : optimizer.states())
    if (state.name == name) return state.value;
  fail("there is no state {}", name);
}

TEST(AdamW, FollowsTheFormula) {
  const Tensor p = vector({1, -2, 0.5}).trainable();
  Optimizer optimizer({{"p", p}}, {.rule = {.weight_decay = 0.02f}, .lr = 0.1f});
  std::vector<Scalar> reference = {{1}, {-2}, {0.5}};
  for (int step = 0; step < 5; ++step) {
    std::vector<float> g;
    for (size_t i = 0; i < 3; ++i) g.push_back(float(std::sin(double(step) + double(i))));
    optimizer.step(gradient_of(p, g));
    for (size_t i = 0; i < 3; ++i) reference[i].update(double(g[i]), 0.1, 0.02);
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(p.to_vector()[i], reference[i].p, 1e-6);
}

TEST(AdamW, ClipsTheNormOverAllGradients) {
  const Tensor a = vector({0}).trainable(), b = vector({0}).trainable();
  Optimizer optimizer({{"a", a}, {"b", b}}, {.rule = {.weight_decay = 0}, .lr = 0.1f, .max_grad_norm = 1});
  Grads grads;
  grads.add(a, vector({6}));
  grads.add(b, vector({8}));
  EXPECT_FLOAT_EQ(optimizer.step(grads, 0.5f), 5);
  EXPECT_NEAR(state_of(optimizer, "m.a").item(), 0.1 * 3.0 / 5, 1e-6);
  EXPECT_NEAR(state_of(optimizer, "m.b").item(), 0.1 * 4.0 / 5, 1e-6);
}

TEST(AdamW, ANormThatIsNotFiniteChangesNothing) {
  const Tensor p = vector({1, 2}).trainable();
  Optimizer optimizer({{"p", p}}, {});
  EXPECT_FALSE(std::isfinite(optimizer.step(gradient_of(p, {1, std::numeric_limits<float>::quiet_NaN()}))));
  EXPECT_EQ(p.to_vector(), (std::vector<float>{1, 2}));
}

TEST(AdamW, AParameterWithoutAGradientStays) {
  const Tensor p = vector({1}).trainable(), q = vector({1}).trainable();
  Optimizer optimizer({{"p", p}, {"q", q}}, {.lr = 0.1f});
  optimizer.step(gradient_of(p, {1}));
  EXPECT_NE(p.item(), 1);
  EXPECT_EQ(q.item(), 1);
}

// The names in state files, which every version has to find again.
TEST(AdamW, StatesHaveTheNamesOfStateFiles) {
  const auto names = [](const Optimizer& optimizer) {
    std::vector<std::string> all;
    for (const Optimizer::State& state : optimizer.states()) all.push_back(state.name);
    return all;
  };
  const std::vector<Parameter> parameters = {{"a", vector({0}).trainable()}, {"b", vector({0, 1}).trainable()}};
  EXPECT_EQ(names({parameters, {}}),
            (std::vector<std::string>{"param.a", "m.a", "v.a", "param.b", "m.b", "v.b", "optimizer"}));
  EXPECT_EQ(names({{parameters[0]}, {.average = 0.5f}}),
            (std::vector<std::string>{"param.a", "m.a", "v.a", "ema.a", "optimizer"}));

  const Parameter matrix{"a", zeros({64, 65}, DType::f32, test::memory()).trainable()};
  const auto described = [](const Parameter& p, OptimizerKind kind) {
    std::string all;
    for (const Optimizer::State& state : Optimizer({p}, OptimizerOptions::of(kind)).states()) {
      EXPECT_EQ(state.value.shape(), state.shape);
      EXPECT_EQ(state.value.dtype(), state.dtype);
      all += fmt::format("{} {} {}, ", state.name, name_of(state.dtype), state.shape);
    }
    return all;
  };
  const std::string param = "param.a f32 [64, 65], ", scalars = "optimizer f32 [8], ";
  EXPECT_EQ(described(matrix, OptimizerKind::adamw8bit),
            param + "m.a u8 [64, 65], v.a u8 [64, 65], m_absmax.a f32 [17], v_absmax.a f32 [17], " + scalars);
  EXPECT_EQ(described(matrix, OptimizerKind::lion), param + "m.a f32 [64, 65], " + scalars);
  EXPECT_EQ(described(matrix, OptimizerKind::lion8bit), param + "m.a u8 [64, 65], m_absmax.a f32 [17], " + scalars);
  EXPECT_EQ(described(matrix, OptimizerKind::adafactor), param + "row.a f32 [64], column.a f32 [65], " + scalars);
  EXPECT_EQ(described(matrix, OptimizerKind::prodigy),
            param + "m.a f32 [64, 65], v.a f32 [64, 65], s.a f32 [64, 65], first.a f32 [64, 65], optimizer f32 [11], ");
  EXPECT_EQ(described(matrix, OptimizerKind::schedule_free),
            param + "v.a f32 [64, 65], z.a f32 [64, 65], optimizer f32 [11], ");
  EXPECT_EQ(described(parameters[0], OptimizerKind::adamw8bit),
            "param.a f32 [1], m.a f32 [1], v.a f32 [1], optimizer f32 [8], ");
  EXPECT_EQ(described(parameters[0], OptimizerKind::adafactor), "param.a f32 [1], v.a f32 [1], optimizer f32 [8], ");
  const Parameter kernel{"a", zeros({2, 3, 5, 4}, DType::f32, test::memory()).trainable()};
  EXPECT_EQ(described(kernel, OptimizerKind::adafactor),
            "param.a f32 [2, 3, 5, 4], row.a f32 [2, 3, 5], column.a f32 [2, 3, 4], optimizer f32 [8], ");
}

TEST(ScheduleFree, SwapsItsAveragesInAndOut) {
  const Tensor p = vector({1, -2, 0.3f}).trainable();
  const Tensor copy = cast(p, DType::bf16);
  Optimizer optimizer({{"p", p, copy}}, {.rule = {.kind = OptimizerKind::schedule_free}, .lr = 0.1f});
  for (int step = 0; step < 5; ++step) optimizer.step(gradient_of(p, {1, float(step), -0.7f}));
  const std::vector<float> y = p.to_vector(), z = state_of(optimizer, "z.p").to_vector();
  optimizer.swap_averages();
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_NE(p.to_vector()[i], y[i]);
    EXPECT_NEAR(double(p.to_vector()[i]), double(y[i]) + (1 - 1 / 0.9) * double(z[i] - y[i]), 1e-6);
  }
  EXPECT_EQ(copy.to_vector(), cast(p, DType::bf16).to_vector());
  optimizer.swap_averages();
  EXPECT_EQ(p.to_vector(), y);
  EXPECT_EQ(copy.to_vector(), cast(p, DType::bf16).to_vector());
}

TEST(ScheduleFree, HasNoOtherAverage) {
  const Tensor p = vector({1}).trainable();
  expect_error(
      [&] {
        Optimizer({{"p", p}}, {.rule = {.kind = OptimizerKind::schedule_free}, .average = 0.9f});
      },
      {"schedule-free", "average 0", "0.9"});
}

TEST(LearningRate, OfScheduleFreeWarmsUpFromItsFirstStep) {
  TrainConfig config{.steps = 100, .lr = 0.5, .warmup = {4}};
  EXPECT_EQ(learning_rate(config, 0), 0);
  EXPECT_EQ(learning_rate(config, 1), 0.125);
  config.optimizer = OptimizerKind::schedule_free;
  for (const auto& [step, rate] : {std::pair{0, 0.125}, {1, 0.25}, {3, 0.5}, {4, 0.5}, {99, 0.5}})
    EXPECT_EQ(learning_rate(config, step), rate) << step;
}

TEST(GradientAccumulator, SumsWhatATapeAndLoraBackwardGive) {
  Rng rng(3);
  const Tensor x = random_normal({2, 5, 7}, rng), dy = random_normal({2, 5, 6}, rng);
  const Tensor down = random_normal({3, 7}, rng).trainable(), up = random_normal({6, 3}, rng).trainable();
  const LoraGrads whole = lora_backward(dy, x, down, up, 0.5f);
  GradientAccumulator accumulator;
  for (int64_t i = 0; i < 2; ++i) {
    const LoraGrads half = lora_backward(slice(dy, 0, i, i + 1), slice(x, 0, i, i + 1), down, up, 0.5f);
    accumulator.add(down, half.grad_down);
    accumulator.add(up, half.grad_up);
  }
  const Grads sums = accumulator.take();
  const auto a = sums[down].to_vector(), b = whole.grad_down.to_vector();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5);
  EXPECT_FALSE(accumulator[down]) << "it starts over";

  const Tensor p = vector({2, 3}).trainable();
  for (int micro = 0; micro < 3; ++micro) {
    Tape tape;
    accumulator.add({{"p", p}}, tape.backward(sum(square(p))));
  }
  EXPECT_EQ(accumulator[p].to_vector(), (std::vector<float>{12, 18}));
}

TEST(AdamW, AveragesFollowAndSwap) {
  const Tensor p = vector({1}).trainable();
  Optimizer optimizer({{"p", p}}, {.lr = 0.1f, .average = 0.9f});
  optimizer.step(gradient_of(p, {3}));
  const double moved = p.item(), average = 1 + (moved - 1) * 9.0 / 11;  // decay 2/11
  EXPECT_NE(moved, 1);
  EXPECT_NEAR(state_of(optimizer, "ema.p").item(), average, 1e-6);
  optimizer.swap_averages();
  EXPECT_NEAR(p.item(), average, 1e-6);
  optimizer.swap_averages();
  EXPECT_EQ(p.item(), moved);
}

// In the update's own pass for dense copies, after it for padded rows.
TEST(AdamW, CopiesFollow) {
  Memory& memory = test::memory();
  Rng rng(3);
  std::vector<Parameter> parameters;
  for (const int64_t padding : {0, 5}) {
    const Tensor room = zeros({7, 3 + padding}, DType::bf16, memory);
    const std::string name = "padded by " + std::to_string(padding);
    parameters.push_back({name, random_normal({7, 3}, rng, memory).trainable(), room.window({7, 3}, {3 + padding, 1})});
  }
  const auto expect_copies = [&] {
    for (const Parameter& p : parameters)
      EXPECT_EQ(p.copy.to_vector(), cast(p.value, DType::bf16).to_vector()) << p.name;
  };
  Optimizer optimizer(parameters, {.lr = 0.1f, .average = 0.5f});
  Grads grads;
  for (const Parameter& p : parameters) grads.add(p.value, random_normal({7, 3}, rng, memory));
  const std::vector<float> before = parameters[0].value.to_vector();
  optimizer.step(grads);
  EXPECT_NE(parameters[0].value.to_vector(), before);
  expect_copies();
  optimizer.swap_averages();
  expect_copies();
}

TEST(AdamW, LossScalingSkipsAndHalves) {
  const Tensor p = vector({1}).trainable(), plain = vector({1}).trainable();
  Optimizer scaled({{"p", p}}, {.lr = 0.1f, .scale_loss = true}), other({{"p", plain}}, {.lr = 0.1f});
  const float scale = scaled.loss_scale().item();
  EXPECT_GT(scale, 1);
  EXPECT_FALSE(std::isfinite(scaled.step(gradient_of(p, {INFINITY}))));
  EXPECT_EQ(p.item(), 1);
  EXPECT_EQ(scaled.loss_scale().item(), scale / 2);
  // Skipped steps do not count, and the scale does not show.
  EXPECT_FLOAT_EQ(scaled.step(gradient_of(p, {3 * scale / 2})), other.step(gradient_of(plain, {3})));
  EXPECT_FLOAT_EQ(p.item(), plain.item());
}

TEST(AdamW, StandsStillOnceHalted) {
  const Tensor p = vector({1}).trainable();
  Optimizer optimizer({{"p", p}}, {.lr = 0.1f});
  optimizer.set(0.1f);
  optimizer.update(gradient_of(p, {NAN}));
  optimizer.update(gradient_of(p, {1}));
  EXPECT_EQ(p.item(), 1);
  optimizer.go_on();
  optimizer.update(gradient_of(p, {1}));
  EXPECT_NE(p.item(), 1);
}

}  // namespace
}  // namespace wick
