// Optimizer steps: each rule against its published formulas in double precision, over 50 steps of tensors of odd sizes
// whose gradients are clipped now and then; and the part that all rules share.
#include <algorithm>
#include <map>

#include "backend/probe.h"
#include "wick/backend/scratch.h"
#include "wick/core/dynamic_map.h"

namespace wick {
namespace {

using namespace probe;

Tensor step_scalars(float lr, float grad_scale, float steps, float sum_of_squares) {
  const Tensor scalars = poisoned({kStepScalars});
  float* values = scalars.data<float>();
  values[kLr] = lr;
  values[kGradScale] = grad_scale;
  values[kLossScale] = 1;
  values[kGoodSteps] = 0;
  values[kSteps] = steps;
  values[kSumOfSquares] = sum_of_squares;
  values[kHalted] = 0;
  return scalars;
}

// torch.optim.AdamW for one tensor, in double precision.
TEST(AdamW, follows_the_formulas) {
  std::vector<OptimizerSlot> slots;
  std::vector<Tensor> kept;
  std::vector<std::vector<double>> want_param, want_m, want_v;
  for (int64_t n : {int64_t{1}, between(2, 50), between(30000, 40000)}) {
    const Tensor param = random({n}), grad = random({n}), m = poisoned({n}), v = poisoned({n});
    backend().fill(m, 0);
    backend().fill(v, 0);
    slots.push_back({param, grad, {m, v}});
    kept.insert(kept.end(), {param, grad, m, v});
    want_param.push_back(doubles(param));
    want_m.emplace_back(size_t(n), 0.0);
    want_v.emplace_back(size_t(n), 0.0);
  }
  const Tensor scalars = step_scalars(1e-2f, 0.5f, 0, 4.0f);
  const OptimizerRule s{.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f};
  for (int64_t step = 1; step <= 5; ++step) {
    backend().optimizer_step(slots, {.rule = s}, scalars);
    EXPECT_EQ(scalars.data<float>()[kSteps], float(step));
    EXPECT_EQ(scalars.data<float>()[kGradNorm], 1.0f);
    const double lr = 1e-2f, beta1 = s.beta1, beta2 = s.beta2;
    for (size_t k = 0; k < slots.size(); ++k)
      for (size_t i = 0; i < want_m[k].size(); ++i) {
        const double g = double(kept[4 * k + 1].data<float>()[i]) * 0.5;
        want_param[k][i] *= 1 - lr * double(s.weight_decay);
        want_m[k][i] = beta1 * want_m[k][i] + (1 - beta1) * g;
        want_v[k][i] = beta2 * want_v[k][i] + (1 - beta2) * g * g;
        const double denominator = std::sqrt(want_v[k][i]) / std::sqrt(1 - std::pow(beta2, step)) + double(s.eps);
        want_param[k][i] -= lr / (1 - std::pow(beta1, step)) * want_m[k][i] / denominator;
      }
  }
  for (size_t k = 0; k < slots.size(); ++k) {
    expect_close(kept[4 * k], want_param[k], 5 * 2 * kEps, "param");
    expect_close(kept[4 * k + 2], want_m[k], 5 * kEps, "m");
    expect_close(kept[4 * k + 3], want_v[k], 5 * kEps * 0.01, "v");
  }
}

// More tensors than one launch takes; the norm is clipped, and a 16-bit copy follows each parameter.
TEST(AdamW, clips_the_norm_of_many_tensors) {
  std::vector<OptimizerSlot> slots, twins;
  std::vector<Tensor> kept;
  std::vector<View> grads;
  const auto keep = [&](const Tensor& t) { return kept.emplace_back(t).view(); };
  for (int64_t i = between(1500, 2000); i > 0; --i) {
    const Shape shape{between(1, 60)};
    OptimizerSlot slot{keep(random(shape)), keep(random(shape)), {keep(random(shape)), keep(poisoned(shape))}};
    backend().fill(slot.states[1], 0.5f);
    if (between(0, 2)) slot.copy = keep(poisoned(shape, Layout::packed, between(0, 1) ? DType::bf16 : DType::f16));
    slots.push_back(slot);
    grads.push_back(slot.grad);
    const auto twin = [&](const View& v) {
      const View other = keep(poisoned(shape));
      backend().copy(other, v);
      return other;
    };
    twins.push_back({twin(slot.param), slot.grad, {twin(slot.states[0]), twin(slot.states[1])}});
  }
  const Tensor scalars = step_scalars(1e-2f, 0.25f, 6, 0);
  float* values = scalars.data<float>();
  backend().sum_of_squares(scalars.window({1}, {1}, kSumOfSquares), grads);
  const float norm = 0.25f * std::sqrt(values[kSumOfSquares]);
  OptimizerStep step{.rule = {.beta1 = 0.9f, .beta2 = 0.99f, .weight_decay = 0.1f}, .max_grad_norm = norm / 3};
  backend().optimizer_step(slots, step, scalars);
  EXPECT_FLOAT_EQ(values[kGradNorm], norm);
  EXPECT_EQ(values[kSteps], 7);

  // The same without clipping, with gradients that are smaller by the same factor.
  step.max_grad_norm = 0;
  const float scale = 0.25f * (norm / 3 / (norm + 1e-6f));
  const Tensor scaled = step_scalars(1e-2f, scale, 6, values[kSumOfSquares]);
  backend().optimizer_step(twins, step, scaled);
  for (size_t k = 0; k < slots.size(); ++k)
    for (int64_t i = 0; i < slots[k].param.numel(); ++i) {
      const float param = slots[k].param.as<float>()[i];
      ASSERT_NEAR(param, twins[k].param.as<float>()[i], 1e-6);
      if (!slots[k].copy) continue;
      const uint16_t copy = slots[k].copy.as<uint16_t>()[i];
      ASSERT_EQ(copy, slots[k].copy.dtype == DType::bf16 ? f32_to_bf16(param) : f32_to_f16(param));
    }
}

TEST(AdamW, leaves_all_as_it_is_where_the_sum_is_not_finite) {
  for (float bad : {NAN, INFINITY}) {
    const Tensor x = random({100}), v = random({100}), before = poisoned({100}), copy = poisoned({100});
    backend().copy(before, x);
    backend().copy(copy, x);
    const Tensor scalars = step_scalars(1, 1, 3, bad);
    const OptimizerStep step{.rule = {.weight_decay = 0.1f}, .max_grad_norm = 1};
    backend().optimizer_step({{x, random({100}), {x, v}, {}, copy}}, step, scalars);
    expect_same_bits(x, before, "param");
    expect_same_bits(copy, before, "copy");
    EXPECT_EQ(scalars.data<float>()[kSteps], 3);
    EXPECT_FALSE(std::isfinite(scalars.data<float>()[kGradNorm]));
  }
}

constexpr OptimizerKind kKinds[] = {OptimizerKind::adamw,         OptimizerKind::adamw8bit,
                                    OptimizerKind::lion,          OptimizerKind::lion8bit,
                                    OptimizerKind::adafactor,     OptimizerKind::prodigy,
                                    OptimizerKind::schedule_free, OptimizerKind::radam_schedule_free};

Tensor filled(const Shape& shape, float value, DType dtype = DType::f32) {
  const Tensor t = poisoned(shape, Layout::packed, dtype);
  backend().fill(t, value);
  return t;
}

// A parameter's states at the start, as OptimizerKind describes them.
std::vector<Tensor> new_states(OptimizerKind kind, const Tensor& param) {
  const Shape& shape = param.shape();
  const auto coded = [&](int count) {
    std::vector<Tensor> all;
    const bool small = shape.numel() < kFewestFor8Bit;
    for (int i = 0; i < count; ++i) all.push_back(filled(shape, 0, small ? DType::f32 : DType::u8));
    for (int i = 0; i < count && !small; ++i) all.push_back(filled({(shape.numel() + 255) / 256}, 0));
    return all;
  };
  const Tensor value = poisoned(shape);
  backend().copy(value, param);
  switch (kind) {
    case OptimizerKind::adamw:
      return {filled(shape, 0), filled(shape, 0)};
    case OptimizerKind::adamw8bit:
      return coded(2);
    case OptimizerKind::lion:
      return {filled(shape, 0)};
    case OptimizerKind::lion8bit:
      return coded(1);
    case OptimizerKind::adafactor: {
      if (shape.rank() < 2) return {filled(shape, 0)};
      Shape column(shape.begin(), shape.end() - 2);
      column.push_back(shape.back());
      return {filled(Shape(shape.begin(), shape.end() - 1), 0), filled(column, 0)};
    }
    case OptimizerKind::prodigy:
      return {filled(shape, 0), filled(shape, 0), filled(shape, 0), value};
    case OptimizerKind::schedule_free:
    case OptimizerKind::radam_schedule_free:
      return {filled(shape, 0), value};
  }
  return {};
}

// Parameters with their states, and the same parameters in double precision.
struct Followed {
  OptimizerRule rule;
  std::vector<Tensor> params, grads;
  std::vector<std::vector<Tensor>> states;
  Tensor scalars;
  std::vector<Doubles> want;
  // Elements that a rounding error may have moved elsewhere.
  std::vector<std::vector<bool>> loose;
  double largest_norm = 0;

  Followed(const OptimizerRule& r, const std::vector<Shape>& shapes) : rule(r) {
    int64_t numel = 0;
    for (const Shape& shape : shapes) {
      params.push_back(random(shape));
      grads.push_back(poisoned(shape));
      states.push_back(new_states(rule.kind, params.back()));
      want.push_back(doubles(params.back()));
      loose.emplace_back(size_t(shape.numel()), false);
      numel += shape.numel();
    }
    largest_norm = 0.7 * std::sqrt(double(numel) / 3);
    scalars = filled({scalars_of(rule)}, 0);
    scalars.data<float>()[kLossScale] = 1;
    if (rule.kind == OptimizerKind::prodigy) values()[kProdigyD] = rule.prodigy.d0;
    if (limits_growth(rule)) values()[kProdigyLargestD] = rule.prodigy.d0;
  }

  float* values() const { return scalars.data<float>(); }

  // The first value of a parameter, smaller.
  void start_from(size_t k, float scale) {
    for (int64_t i = 0; i < params[k].numel(); ++i) params[k].data<float>()[i] *= scale;
    states[k] = new_states(rule.kind, params[k]);
    want[k] = doubles(params[k]);
  }

  // A step on `grads` times `scale`; returns them as they count: scaled, clipped, in double precision.
  std::vector<Doubles> step(float lr, float scale) {
    std::vector<OptimizerSlot> slots;
    std::vector<View> views(grads.begin(), grads.end());
    for (size_t k = 0; k < params.size(); ++k) {
      slots.push_back({params[k], grads[k], {}});
      for (const Tensor& state : states[k]) slots.back().states.push_back(state);
    }
    values()[kLr] = lr;
    values()[kGradScale] = scale;
    backend().sum_of_squares(scalars.window({1}, {1}, kSumOfSquares), views);
    backend().optimizer_step(slots, {.rule = rule, .max_grad_norm = float(largest_norm)}, scalars);

    std::vector<Doubles> all;
    double squares = 0;
    for (const Tensor& grad : grads)
      for (double& g : all.emplace_back(doubles(grad))) {
        g *= double(scale);
        squares += g * g;
      }
    const double norm = std::sqrt(squares), clip = float(largest_norm) / (norm + 1e-6);
    EXPECT_NEAR(values()[kGradNorm], norm, norm * 1e-6);
    if (norm > largest_norm)
      for (Doubles& some : all)
        for (double& g : some) g *= clip;
    return all;
  }

  void draw_gradients() {
    for (Tensor& grad : grads) grad = random(grad.shape());
  }

  void expect_followed(double tolerance) const {
    size_t left_out = 0, all = 0;
    for (size_t k = 0; k < params.size(); ++k) {
      Doubles expected = want[k];
      const std::vector<float> got = params[k].to_vector();
      for (size_t i = 0; i < got.size(); ++i)
        if (loose[k][i]) expected[i] = double(got[i]), ++left_out;
      all += got.size();
      expect_close(params[k], expected, tolerance, "param");
    }
    EXPECT_LE(left_out, all / 100 + 2);
  }
};

std::vector<Shape> odd_shapes() {
  return {{1},
          {between(2, 50)},
          {between(130, 300)},
          {between(2, 9), between(129, 300)},
          {between(257, 400), 5},
          {3, 2, between(2, 7), between(100, 140)},
          {between(70, 90), between(65, 80)}};
}

constexpr int kFollowedSteps = 50;
float scale_of(int step) { return 1 / float(1 + step % 3); }

// Numbers of a parameter that a reference keeps from step to step, zero at first.
using Kept = std::map<size_t, Doubles>;
Doubles& kept(Kept& all, size_t k, size_t size) {
  Doubles& one = all[k];
  one.resize(size);
  return one;
}

void follow_adamw(const OptimizerRule& rule) {
  Followed run(rule, odd_shapes());
  Kept first, second;
  const double beta1 = double(rule.beta1), beta2 = double(rule.beta2), lr = double(1e-2f),
               decay = double(rule.weight_decay), eps = double(rule.eps);
  for (int t = 1; t <= kFollowedSteps; ++t) {
    run.draw_gradients();
    const std::vector<Doubles> grads = run.step(1e-2f, scale_of(t));
    for (size_t k = 0; k < grads.size(); ++k) {
      Doubles &m = kept(first, k, grads[k].size()), &v = kept(second, k, grads[k].size());
      for (size_t i = 0; i < m.size(); ++i) {
        const double g = grads[k][i];
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        double& p = run.want[k][i];
        p -= lr * decay * p;
        p -= lr * (m[i] / (1 - std::pow(beta1, t))) / (std::sqrt(v[i] / (1 - std::pow(beta2, t))) + eps);
      }
    }
  }
  run.expect_followed(kFollowedSteps * 2 * kEps);
}
TEST(Optimizers, adamw_follows_its_rule) {
  follow_adamw({.weight_decay = 0.1f});
  follow_adamw({.beta1 = 0.7f, .beta2 = 0.95f, .eps = 0.05f, .weight_decay = 0.02f});
}

// Chen et al., 2023, algorithm 2. Where the mean is nearly zero, rounding decides its sign.
void follow_lion(const OptimizerRule& rule) {
  Followed run(rule, odd_shapes());
  Kept momentum;
  const double beta1 = double(rule.beta1), beta2 = double(rule.beta2), lr = double(1e-3f),
               decay = double(rule.weight_decay);
  for (int t = 1; t <= kFollowedSteps; ++t) {
    run.draw_gradients();
    const std::vector<Doubles> grads = run.step(1e-3f, scale_of(t));
    for (size_t k = 0; k < grads.size(); ++k) {
      Doubles& m = kept(momentum, k, grads[k].size());
      for (size_t i = 0; i < m.size(); ++i) {
        const double mean = beta1 * m[i] + (1 - beta1) * grads[k][i];
        if (std::abs(mean) < 1e-6) run.loose[k][i] = true;
        run.want[k][i] *= 1 - lr * decay;
        run.want[k][i] -= lr * double((mean > 0) - (mean < 0));
        m[i] = beta2 * m[i] + (1 - beta2) * grads[k][i];
      }
    }
  }
  run.expect_followed(kFollowedSteps * kEps);
}
TEST(Optimizers, lion_follows_its_rule) {
  follow_lion({.kind = OptimizerKind::lion, .beta2 = 0.99f, .weight_decay = 0.1f});
  follow_lion({.kind = OptimizerKind::lion, .beta1 = 0.95f, .beta2 = 0.8f, .weight_decay = 0});
}

TEST(Optimizers, lion_stays_where_the_mean_is_zero) {
  const Tensor param = filled({5}, 0.5f), grad = filled({5}, 0), m = filled({5}, 0);
  Tensor scalars = step_scalars(0.1f, 1, 0, 0);
  backend().optimizer_step({{param, grad, {m}}}, {.rule = {.kind = OptimizerKind::lion, .weight_decay = 0}}, scalars);
  EXPECT_EQ(param.to_vector(), std::vector<float>(5, 0.5f));
}

// Shazeer & Stern, 2018, algorithms 4 and 5: of each matrix the rows' and columns' mean squares, of a vector all.
void follow_adafactor(const OptimizerRule& rule) {
  Followed run(rule, odd_shapes());
  Kept rows, columns;
  const AdafactorRule& own = rule.adafactor;
  const double decay = double(rule.weight_decay);
  for (int t = 1; t <= kFollowedSteps; ++t) {
    run.draw_gradients();
    const std::vector<Doubles> grads = run.step(1e-2f, scale_of(t));
    const double keep = 1 - std::pow(double(t), own.decay_rate);
    for (size_t k = 0; k < grads.size(); ++k) {
      const Shape& shape = run.params[k].shape();
      const Doubles& g = grads[k];
      const size_t width = size_t(shape.back()), height = shape.rank() > 1 ? size_t(shape[shape.rank() - 2]) : 1;
      const size_t matrices = g.size() / (width * height);
      Doubles &row = kept(rows, k, matrices * height), &column = kept(columns, k, matrices * width), u(g.size());
      double squares = 0;
      for (size_t m = 0; m < matrices; ++m) {
        const auto at = [&](size_t r, size_t c) { return (m * height + r) * width + c; };
        const auto squared = [&](size_t r, size_t c) { return g[at(r, c)] * g[at(r, c)] + own.eps; };
        double mean_row = 0;
        for (size_t r = 0; r < height; ++r) {
          double mean = 0;
          for (size_t c = 0; c < width; ++c) mean += squared(r, c) / double(width);
          double& state = row[m * height + r];
          mean_row += (state = keep * state + (1 - keep) * mean) / double(height);
        }
        for (size_t c = 0; c < width; ++c) {
          double mean = 0;
          for (size_t r = 0; r < height; ++r) mean += squared(r, c) / double(height);
          double& state = column[m * width + c];
          state = keep * state + (1 - keep) * mean;
        }
        for (size_t r = 0; r < height; ++r)
          for (size_t c = 0; c < width; ++c) {
            u[at(r, c)] = g[at(r, c)] / std::sqrt(row[m * height + r] / mean_row * column[m * width + c]);
            squares += u[at(r, c)] * u[at(r, c)];
          }
      }
      const double limit = std::max(1.0, std::sqrt(squares / double(g.size())) / own.clip_threshold);
      double of_param = 0;
      for (const double p : run.want[k]) of_param += p * p / double(g.size());
      const double scale = own.scale_parameter ? std::max(own.scale_eps, std::sqrt(of_param)) : 1;
      const double lr = double(1e-2f) * scale;
      for (size_t i = 0; i < g.size(); ++i) run.want[k][i] += -lr * decay * run.want[k][i] - lr * u[i] / limit;
      if (t < kFollowedSteps) continue;
      const bool is_vector = shape.rank() < 2;
      if (!is_vector) expect_close(run.states[k][0], row, 10 * kEps, "row");
      expect_close(run.states[k][is_vector ? 0 : 1], column, 10 * kEps, "column");
    }
  }
  run.expect_followed(kFollowedSteps * 2 * kEps);
}
TEST(Optimizers, adafactor_follows_its_rule) {
  follow_adafactor({.kind = OptimizerKind::adafactor, .weight_decay = 0.1f});
  for (const double scale_eps : {1e-3, 0.9})
    follow_adafactor(
        {.kind = OptimizerKind::adafactor,
         .weight_decay = 0.05f,
         .adafactor = {
             .eps = 0.01, .scale_eps = scale_eps, .clip_threshold = 0.6, .decay_rate = -0.5, .scale_parameter = true}});
}

// More than one tile and block in each direction.
TEST(Optimizers, adafactor_takes_large_matrices) {
  const int64_t height = between(1500, 1600), width = between(1100, 1200);
  Followed run({.kind = OptimizerKind::adafactor, .weight_decay = 0}, {{height, width}});
  run.draw_gradients();
  const Doubles g = run.step(1e-2f, 1).front();
  Doubles row(size_t(height), 0.0), column(size_t(width), 0.0);
  double mean = 0;
  for (int64_t r = 0; r < height; ++r)
    for (int64_t c = 0; c < width; ++c) {
      const double square = g[size_t(r * width + c)] * g[size_t(r * width + c)];
      row[size_t(r)] += square / double(width);
      column[size_t(c)] += square / double(height);
      mean += square / double(g.size());
    }
  expect_close(run.states[0][0], row, 10 * kEps, "row");
  expect_close(run.states[0][1], column, 10 * kEps, "column");
  const auto update = [&](size_t i) {
    return g[i] / std::sqrt(row[i / size_t(width)] * column[i % size_t(width)] / mean);
  };
  double squares = 0;
  for (size_t i = 0; i < g.size(); ++i) squares += update(i) * update(i);
  const double limit = std::max(1.0, std::sqrt(squares / double(g.size())));
  for (size_t i = 0; i < g.size(); ++i) run.want[0][i] -= double(1e-2f) * update(i) / limit;
  run.expect_followed(4 * kEps);
}

// The scratch of a device: parameters in groups of bounded scratch, each in one of them.
TEST(Optimizers, adafactor_groups_its_parameters) {
  std::vector<AdafactorTiles> all;
  for (int i = 0; i < 300; ++i) all.emplace_back(Shape{between(1, 3), between(1, 2000), between(1, 2000)});
  all.insert(all.begin() + 100, AdafactorTiles(Shape{200000, 10000}));
  size_t next = 0;
  for_adafactor_groups(all, [&](size_t first, size_t last, int64_t scratch) {
    EXPECT_EQ(first, next);
    int64_t sum = 0;
    for (size_t i = first; i < last; ++i) sum += all[i].scratch();
    EXPECT_EQ(scratch, sum);
    EXPECT_TRUE(sum <= int64_t{16} << 20 || last == first + 1) << sum;
    next = last;
  });
  EXPECT_EQ(next, all.size());
  EXPECT_GT(AdafactorTiles(Shape{200000, 10000}).scratch(), int64_t{16} << 20);
}

// Mishchenko & Defazio, 2023, as prodigyopt has it. The gradients point from the reference's parameters to a target a
// little way off, with noise, so that the estimate grows; the first step has no rate, as in a warm-up. Parameters are
// small, or the first movements, of 1e-6, would be lost in their rounding.
void follow_prodigy(const OptimizerRule& rule, double least_d) {
  Followed run(rule, odd_shapes());
  const ProdigyRule& own = rule.prodigy;
  const double beta1 = double(rule.beta1), beta2 = double(rule.beta2), d0 = double(own.d0),
               beta3 = own.beta3 < 0 ? std::sqrt(beta2) : double(own.beta3), decay = double(rule.weight_decay);
  for (size_t k = 0; k < run.params.size(); ++k) run.start_from(k, 1e-3f);
  Kept first, second, sums;
  const std::vector<Doubles> begin = run.want;
  std::vector<Doubles> targets = begin;
  for (size_t k = 0; k < targets.size(); ++k) {
    const Doubles way = doubles(random(run.params[k].shape()));
    for (size_t i = 0; i < way.size(); ++i) targets[k][i] += 0.1 * way[i];
  }
  double d = d0, largest = d0, numerator = 0;
  for (int step = 0, updates = 0; step < kFollowedSteps; ++step) {
    const float lr = float(std::min(step, 4)) / 4;
    for (size_t k = 0; k < targets.size(); ++k) {
      run.grads[k] = random(run.params[k].shape());
      float* g = run.grads[k].data<float>();
      for (size_t i = 0; i < targets[k].size(); ++i)
        g[i] = float(20 * (run.want[k][i] - targets[k][i]) + 0.1 * double(g[i]));
    }
    const std::vector<Doubles> grads = run.step(lr, scale_of(step));
    if (lr == 0) continue;
    const int t = ++updates;
    const double correction =
        own.use_bias_correction ? std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t)) : 1;
    const double rate = d * double(lr) * correction;
    double towards = 0, magnitudes = 0;
    for (size_t k = 0; k < grads.size(); ++k) {
      const size_t n = grads[k].size();
      Doubles &m = kept(first, k, n), &v = kept(second, k, n), &s = kept(sums, k, n);
      for (size_t i = 0; i < n; ++i) {
        const double g = grads[k][i] + (own.decouple ? 0 : decay * run.want[k][i]);
        m[i] = beta1 * m[i] + d * (1 - beta1) * g;
        v[i] = beta2 * v[i] + d * d * (1 - beta2) * g * g;
        if (int64_t(i) % own.slice_p != 0) continue;
        towards += d / d0 * rate * g * (begin[k][i] - run.want[k][i]);
        magnitudes += std::abs(s[i] = beta3 * s[i] + d / d0 * (own.safeguard_warmup ? d : rate) * g);
      }
    }
    numerator = beta3 * numerator + towards;
    const double estimate = double(own.d_coef) * numerator / magnitudes;
    if (d == d0) d = std::max(d, estimate);
    largest = std::max(largest, estimate);
    d = std::min(largest, d * double(own.growth_rate));
    for (size_t k = 0; k < grads.size(); ++k)
      for (size_t i = 0; i < grads[k].size(); ++i) {
        double& p = run.want[k][i];
        if (own.decouple) p -= decay * rate * p;
        p -= rate * first[k][i] / (std::sqrt(second[k][i]) + d * double(rule.eps));
      }
    EXPECT_NEAR(double(run.values()[kProdigyD]) / d, 1, 1e-4);
  }
  EXPECT_GT(d, least_d) << "or the test shows little";
  EXPECT_EQ(run.values()[kProdigyUpdates], kFollowedSteps - 1);
  run.expect_followed(1e-4 * 0.1);  // of the way to the target
}
TEST(Optimizers, prodigy_follows_its_rule) {
  const auto rule = [](const ProdigyRule& own) {
    return OptimizerRule{.kind = OptimizerKind::prodigy, .beta2 = 0.99f, .weight_decay = 0.1f, .prodigy = own};
  };
  const ProdigyRule rows[] = {{},
                              {.use_bias_correction = false},
                              {.safeguard_warmup = false},
                              {.beta3 = 0.9f},
                              {.decouple = false},
                              {.slice_p = 11},
                              {.decouple = false, .slice_p = 3},
                              {.d0 = 1e-5f, .d_coef = 2}};
  for (const ProdigyRule& own : rows) {
    SCOPED_TRACE(&own - rows);
    follow_prodigy(rule(own), 1e-4);
  }
  follow_prodigy(rule({.growth_rate = 1.15f}), 2e-4);  // limited in each step
  OptimizerRule other = rule({});
  other.beta1 = 0.8f, other.beta2 = 0.95f, other.eps = 1e-3f;
  follow_prodigy(other, 1e-4);
}

TEST(Optimizers, prodigy_waits_for_a_gradient_and_a_rate) {
  for (const float gradient : {0.0f, 1.0f}) {
    const float lr = 1 - gradient;
    const Tensor param = filled({300}, 0.5f), grad = filled({300}, gradient), first = filled({300}, 0.5f);
    const std::vector<Tensor> states = {filled({300}, 0), filled({300}, 0), filled({300}, 0)};
    const Tensor scalars = filled({kProdigyScalars}, 0);
    float* values = scalars.data<float>();
    values[kLr] = lr, values[kGradScale] = values[kLossScale] = 1, values[kProdigyD] = ProdigyRule().d0;
    backend().optimizer_step({{param, grad, {states[0], states[1], states[2], first}}},
                             {.rule = {.kind = OptimizerKind::prodigy}}, scalars);
    EXPECT_EQ(param.to_vector(), std::vector<float>(300, 0.5f)) << lr;
    for (const Tensor& state : states) EXPECT_EQ(state.to_vector(), std::vector<float>(300, 0)) << lr;
    EXPECT_EQ(values[kProdigyUpdates], 0);
    EXPECT_EQ(values[kProdigyD], ProdigyRule().d0);
    EXPECT_EQ(values[kSteps], 1);
  }
}

// Defazio et al., 2024, by x, y and z as in the paper: y = (1 - beta1) z + beta1 x is where gradients are taken. The
// rate warms up, and falls once: its largest counts.
void follow_schedule_free(const OptimizerRule& rule) {
  Followed run(rule, odd_shapes());
  const double beta1 = double(rule.beta1), beta2 = double(rule.beta2);
  // RAdam's, by the length of its average.
  const auto share = [&](int t) {
    if (rule.kind == OptimizerKind::schedule_free) return 1.0;
    const double most = 2 / (1 - beta2) - 1, length = most - 2 * t * std::pow(beta2, t) / (1 - std::pow(beta2, t));
    return length > 4 ? std::sqrt((length - 4) / (most - 4) * ((length - 2) / (most - 2)) * (most / length)) : 0;
  };
  Kept second;
  std::vector<Doubles> x = run.want, z = run.want;
  double weights = 0, largest = 0;
  for (int t = 1; t <= kFollowedSteps; ++t) {
    const float rate = 1e-2f * float(std::min(t, 10)) / 10 * (t > 40 ? 0.5f : 1);
    const double lr = double(rate) * share(t);
    run.draw_gradients();
    const std::vector<Doubles> grads = run.step(rate, scale_of(t));
    largest = std::max(largest, lr);
    const double weight = std::pow(t, rule.schedule_free.r) * std::pow(largest, rule.schedule_free.weight_lr_power);
    weights += weight;
    const double c = weights > 0 ? weight / weights : 0;
    for (size_t k = 0; k < grads.size(); ++k) {
      Doubles& v = kept(second, k, grads[k].size());
      for (size_t i = 0; i < v.size(); ++i) {
        const double g = grads[k][i];
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        const double update = g / (std::sqrt(v[i] / (1 - std::pow(beta2, t))) + double(rule.eps)) +
                              double(rule.weight_decay) * run.want[k][i];
        z[k][i] -= lr * update;
        x[k][i] = (1 - c) * x[k][i] + c * z[k][i];
        run.want[k][i] = (1 - beta1) * z[k][i] + beta1 * x[k][i];
      }
    }
  }
  run.expect_followed(kFollowedSteps * 2 * kEps);
  for (size_t k = 0; k < z.size(); ++k) expect_close(run.states[k][1], z[k], kFollowedSteps * 2 * kEps, "z");
  EXPECT_NEAR(double(run.values()[kWeightSum]) / weights, 1, 4 * kEps);  // of rates in f32
}
TEST(Optimizers, schedule_free_follows_its_rule) {
  for (const OptimizerKind kind : {OptimizerKind::schedule_free, OptimizerKind::radam_schedule_free}) {
    follow_schedule_free({.kind = kind, .weight_decay = 0.1f});
    for (const double power : {0.0, 1.0})
      follow_schedule_free({.kind = kind,
                            .beta1 = 0.95f,
                            .beta2 = 0.98f,
                            .eps = 1e-3f,
                            .weight_decay = 0.02f,
                            .schedule_free = {.r = 1.5, .weight_lr_power = power}});
  }
}

// The rate of its first steps is 0: only v and the count of steps move on.
TEST(Optimizers, radam_schedule_free_waits_for_its_average) {
  Followed run({.kind = OptimizerKind::radam_schedule_free}, {{300}});
  const std::vector<float> start = run.params[0].to_vector();
  for (int t = 1; t <= 5; ++t) {
    run.draw_gradients();
    run.step(1e-2f, 1);
    EXPECT_EQ(run.params[0].to_vector() == start, t < 5) << t;  // at a beta2 of 0.999
  }
}

// The sum of a million weights, each a millionth of it.
TEST(Optimizers, schedule_free_counts_every_weight) {
  const Tensor scalars = filled({kScheduleFreeScalars}, 0), grad = filled({1}, 0), v = filled({1}, 0);
  float* values = scalars.data<float>();
  const double weight = double(1e-4f) * double(1e-4f), before = 1e6 * weight;
  values[kLr] = values[kLargestLr] = 1e-4f, values[kGradScale] = values[kLossScale] = 1;
  values[kWeightSum] = float(before);
  values[kWeightSumRest] = float(before - double(values[kWeightSum]));
  const Tensor y = filled({1}, 0), z = filled({1}, 1);
  constexpr int kSteps100 = 100;
  for (int step = 0; step < kSteps100; ++step)
    backend().optimizer_step({{y, grad, {v, z}}}, {.rule = {.kind = OptimizerKind::schedule_free, .weight_decay = 0}},
                             scalars);
  const double sum = double(values[kWeightSum]) + double(values[kWeightSumRest]);
  EXPECT_NEAR((sum - before) / (kSteps100 * weight), 1, 1e-6);
}

// By the description in dynamic_map.h, and some of the values that create_dynamic_map() gives.
TEST(DynamicMap, has_the_published_values) {
  for (const bool is_signed : {true, false}) {
    const DynamicMap& map = is_signed ? kSignedMap : kUnsignedMap;
    Doubles want = {0, 1};
    for (int i = 0; i < 7; ++i)
      for (int parts = 1 << (is_signed ? i : i + 1), k = 0; k < parts; ++k) {
        want.push_back(std::pow(10.0, i - 6) * (0.1 + 0.9 * (k + 0.5) / parts));
        if (is_signed) want.push_back(-want.back());
      }
    std::sort(want.begin(), want.end());
    ASSERT_EQ(want.size(), 256u);
    for (size_t i = 0; i < 256; ++i) EXPECT_NEAR(map.values[i], want[i], std::abs(want[i]) * 2 * kEps) << i;
  }
  EXPECT_EQ(kSignedMap.values[127], 0);
  EXPECT_EQ(kSignedMap.values[255], 1);
  EXPECT_EQ(kUnsignedMap.values[0], 0);
  EXPECT_FLOAT_EQ(kSignedMap.values[0], -0.992968738f);
  EXPECT_FLOAT_EQ(kSignedMap.values[128], 5.5e-7f);
  EXPECT_FLOAT_EQ(kUnsignedMap.values[1], 3.25e-7f);
  EXPECT_FLOAT_EQ(kUnsignedMap.values[128], 0.110546872f);
}

// A state in 8 bits, decoded.
Doubles decoded(const Tensor& codes, const Tensor& absmax, const DynamicMap& map) {
  Doubles values(size_t(codes.numel()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = double(map.values[codes.data<uint8_t>()[i]]) * double(absmax.data<float>()[i / 256]);
  return values;
}

// Codes and magnitudes are those of `want`, a sum of terms of the size of `terms`; where that is as near to two values
// of the map as rounding goes, either's. Negative numbers that are nearest to zero have the code below it.
void expect_coded(const Tensor& codes, const Tensor& absmax, const DynamicMap& map, const Doubles& want,
                  const Doubles& terms) {
  size_t wrong = 0;
  for (size_t first = 0; first < want.size(); first += 256) {
    const size_t end = std::min(want.size(), first + 256);
    double largest = 0, largest_term = 0;
    for (size_t i = first; i < end; ++i) {
      largest = std::max(largest, std::abs(want[i]));
      largest_term = std::max(largest_term, terms[i]);
    }
    EXPECT_NEAR(absmax.data<float>()[first / 256], largest, 4 * kEps * largest_term);
    for (size_t i = first; i < end && largest > 0; ++i) {
      const int code = codes.data<uint8_t>()[i];
      const bool below_zero = code < 255 && map.values[code + 1] == 0, zero = map.values[code] == 0;
      const double low = code == 0 ? -2 : zero && code > 0 ? 0 : double(map.thresholds[code - 1]);
      const double high = code == 255 ? 2 : below_zero ? 0 : double(map.thresholds[code]);
      const double share = want[i] / largest,
                   slack = 4 * kEps * (terms[i] / largest + std::abs(share) * (1 + largest_term / largest));
      if (share < low - slack || share > high + slack) ++wrong;
    }
  }
  EXPECT_EQ(wrong, 0u);
}

struct Coded {
  std::vector<Shape> shapes{{between(4097, 5000)}, {between(60, 70), between(80, 90)}, {4096}, {3, 5, 7, 41}};
  OptimizerRule rule;
  Followed run{rule, shapes};

  Doubles state(size_t k, size_t which, size_t count, const DynamicMap& map) const {
    return decoded(run.states[k][which], run.states[k][count + which], map);
  }
  void draw_gradients() {  // of unlike magnitudes, with zeros among them and a block of them
    run.draw_gradients();
    for (Tensor& grad : run.grads)
      for (int64_t i = 0; i < grad.numel(); ++i) {
        float& g = grad.data<float>()[i];
        g *= i / 256 == 1 ? 0 : std::pow(10.0f, -float(i % 3));
      }
  }
};

// One step from the states as they are stored, since codes that rounding decides would lead elsewhere.
void follow_adamw8bit(const OptimizerRule& rule) {
  Coded c{.rule = rule};
  const double beta1 = double(rule.beta1), beta2 = double(rule.beta2), lr = double(1e-2f);
  for (int t = 1; t <= kFollowedSteps; ++t) {
    std::vector<Doubles> m, v, terms;
    for (size_t k = 0; k < c.shapes.size(); ++k) {
      m.push_back(c.state(k, 0, 2, kSignedMap));
      v.push_back(c.state(k, 1, 2, kUnsignedMap));
      terms.push_back(m.back());
      c.run.want[k] = doubles(c.run.params[k]);
    }
    c.draw_gradients();
    const std::vector<Doubles> grads = c.run.step(1e-2f, scale_of(t));
    for (size_t k = 0; k < grads.size(); ++k) {
      for (size_t i = 0; i < grads[k].size(); ++i) {
        const double g = grads[k][i], correction1 = 1 - std::pow(beta1, t),
                     correction2 = std::sqrt(1 - std::pow(beta2, t));
        terms[k][i] = std::abs(m[k][i]) + std::abs(g);
        m[k][i] = beta1 * m[k][i] + (1 - beta1) * g;
        v[k][i] = beta2 * v[k][i] + (1 - beta2) * g * g;
        double& p = c.run.want[k][i];
        p -= lr * correction2 / correction1 * m[k][i] / (std::sqrt(v[k][i]) + correction2 * double(rule.eps));
        p *= 1 - lr * double(rule.weight_decay);
      }
      expect_coded(c.run.states[k][0], c.run.states[k][2], kSignedMap, m[k], terms[k]);
      expect_coded(c.run.states[k][1], c.run.states[k][3], kUnsignedMap, v[k], v[k]);
    }
    double largest = 1;  // where v became zero and m did not, a parameter runs away, as with bitsandbytes
    for (const Doubles& some : c.run.want)
      for (const double p : some) largest = std::max(largest, std::abs(p));
    c.run.expect_followed(4 * kEps * largest);
  }
}
TEST(Optimizers, adamw8bit_follows_its_rule) {
  follow_adamw8bit({.kind = OptimizerKind::adamw8bit, .weight_decay = 0.1f});
  follow_adamw8bit(
      {.kind = OptimizerKind::adamw8bit, .beta1 = 0.8f, .beta2 = 0.95f, .eps = 1e-2f, .weight_decay = 0.02f});
}

void follow_lion8bit(const OptimizerRule& rule) {
  Coded c{.rule = rule};
  const double beta1 = double(rule.beta1), beta2 = double(rule.beta2), lr = double(1e-3f);
  for (int t = 1; t <= kFollowedSteps; ++t) {
    std::vector<Doubles> m, terms;
    for (size_t k = 0; k < c.shapes.size(); ++k) {
      m.push_back(c.state(k, 0, 1, kSignedMap));
      terms.push_back(m.back());
      c.run.want[k] = doubles(c.run.params[k]);
      c.run.loose[k].assign(m[k].size(), false);
    }
    c.draw_gradients();
    const std::vector<Doubles> grads = c.run.step(1e-3f, scale_of(t));
    for (size_t k = 0; k < grads.size(); ++k) {
      for (size_t i = 0; i < grads[k].size(); ++i) {
        const double g = grads[k][i], mean = beta1 * m[k][i] + (1 - beta1) * g;
        terms[k][i] = std::abs(m[k][i]) + std::abs(g);
        c.run.loose[k][i] = std::abs(mean) < 1e-6 * terms[k][i] && mean != 0;
        c.run.want[k][i] *= 1 - lr * double(rule.weight_decay);
        c.run.want[k][i] -= lr * double((mean > 0) - (mean < 0));
        m[k][i] = beta2 * m[k][i] + (1 - beta2) * g;
      }
      expect_coded(c.run.states[k][0], c.run.states[k][1], kSignedMap, m[k], terms[k]);
    }
    c.run.expect_followed(2 * kEps);
  }
}
TEST(Optimizers, lion8bit_follows_its_rule) {
  follow_lion8bit({.kind = OptimizerKind::lion8bit, .beta2 = 0.99f, .weight_decay = 0.1f});
  follow_lion8bit({.kind = OptimizerKind::lion8bit, .beta1 = 0.95f, .beta2 = 0.8f, .weight_decay = 0.02f});
}

// Small tensors keep f32: after a step the states are not what codes could say.
TEST(Optimizers, small_tensors_keep_f32_states) {
  for (const OptimizerKind kind : {OptimizerKind::adamw8bit, OptimizerKind::lion8bit}) {
    Followed run({.kind = kind, .beta2 = 0.99f, .weight_decay = 0}, {{4095}});
    run.draw_gradients();
    const std::vector<Doubles> grads = run.step(1e-3f, 1);
    Doubles m = grads[0];
    for (double& one : m) one *= kind == OptimizerKind::adamw8bit ? 1 - double(0.9f) : 1 - double(0.99f);
    expect_close(run.states[0][0], m, kEps, "m");
  }
}

std::vector<std::vector<char>> bytes_of_all(const std::vector<Tensor>& all) {
  std::vector<std::vector<char>> bytes;
  for (const Tensor& t : all) {
    const char* data = t.data<char>();
    bytes.emplace_back(data, data + t.numel() * int64_t(size_of(t.dtype())));
  }
  return bytes;
}

TEST(Optimizers, leave_all_as_it_is_where_the_sum_is_not_finite) {
  for (const OptimizerKind kind : kKinds) {
    Followed run({.kind = kind}, odd_shapes());
    run.draw_gradients();
    run.step(1e-3f, 1);
    std::vector<Tensor> all = run.params;
    for (const std::vector<Tensor>& states : run.states) all.insert(all.end(), states.begin(), states.end());
    const auto before = bytes_of_all(all);
    const std::vector<float> scalars = run.scalars.to_vector();
    std::vector<OptimizerSlot> slots;
    for (size_t k = 0; k < run.params.size(); ++k) {
      slots.push_back({run.params[k], run.grads[k], {}});
      for (const Tensor& state : run.states[k]) slots.back().states.push_back(state);
    }
    run.values()[kSumOfSquares] = NAN;
    backend().optimizer_step(slots, {.rule = run.rule}, run.scalars);
    EXPECT_EQ(bytes_of_all(all), before) << int(kind);
    EXPECT_EQ(run.values()[kHalted], 1);
    for (int i = kStepScalars; i < scalars_of(run.rule); ++i) EXPECT_EQ(run.values()[i], scalars[size_t(i)]) << i;
  }
}

// The same bits twice; averages and copies are of the updated parameters.
TEST(Optimizers, averages_and_copies_follow) {
  for (const OptimizerKind kind : kKinds)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Shape shape{between(60, 70), between(70, 80)};
      const Tensor start = random(shape), grad = random(shape);
      std::vector<std::vector<float>> found;
      for (int i = 0; i < 2; ++i) {
        const Tensor param = poisoned(shape), average = filled(shape, 0.25f),
                     copy = poisoned(shape, Layout::packed, dtype);
        backend().copy(param, start);
        const std::vector<Tensor> states = new_states(kind, param);
        OptimizerSlot slot{param, grad, {}, average, copy};
        for (const Tensor& state : states) slot.states.push_back(state);
        const Tensor scalars = filled({scalars_of({.kind = kind})}, 0);
        float* values = scalars.data<float>();
        values[kLr] = 0.1f, values[kGradScale] = values[kLossScale] = 1, values[kSteps] = 9;
        if (kind == OptimizerKind::prodigy) values[kProdigyD] = ProdigyRule().d0;
        backend().optimizer_step({slot}, {.rule = {.kind = kind}, .average_decay = 0.5f}, scalars);
        found.push_back(param.to_vector());
        EXPECT_NE(found.back(), start.to_vector()) << int(kind);
        Doubles want = doubles(param), rounded = want;
        for (double& one : want) one = 0.25 + 0.5 * (one - 0.25);
        expect_close(average, want, kEps, "average");
        const Tensor again = poisoned(shape, Layout::packed, dtype);
        backend().copy(again, param);
        EXPECT_EQ(bytes_of_all({copy}), bytes_of_all({again})) << int(kind);
      }
      EXPECT_EQ(found[0], found[1]) << int(kind);
    }
}

// A slot at a share of the rate moves as one does by itself at that rate.
TEST(Optimizers, slots_have_shares_of_the_rate) {
  for (const OptimizerKind kind : kKinds) {
    if (kind == OptimizerKind::prodigy) continue;  // one rate for all
    for (const Shape& shape : {Shape{between(60, 70), between(70, 80)}, Shape{between(3, 9)}}) {
      const Tensor start = random(shape), grad = random(shape);
      const float share = 0.3f, lr = 0.1f;
      const auto moved = [&](float rate, float slot_rate) {
        const Tensor param = poisoned(shape), other = random({40});
        backend().copy(param, start);
        const std::vector<Tensor> states = new_states(kind, param), others = new_states(kind, other);
        OptimizerSlot slot{.param = param, .grad = grad, .rate = slot_rate}, beside{.param = other, .grad = other};
        for (const Tensor& state : states) slot.states.push_back(state);
        for (const Tensor& state : others) beside.states.push_back(state);
        const Tensor scalars = filled({scalars_of({.kind = kind})}, 0);
        float* values = scalars.data<float>();
        values[kLr] = rate, values[kGradScale] = values[kLossScale] = 1, values[kSteps] = 9;
        for (int i = 0; i < 3; ++i)
          backend().optimizer_step({slot, beside}, {.rule = {.kind = kind, .weight_decay = 0.1f}}, scalars);
        return param;
      };
      expect_close(moved(lr, share), doubles(moved(lr * share, 1)), 3 * 4 * kEps, "param");
      EXPECT_NE(moved(lr, share).to_vector(), moved(lr, 1).to_vector()) << int(kind);
    }
  }
}

}  // namespace
}  // namespace wick
