#include "wick/train/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "wick/ops/shape.h"

namespace wick {
namespace {

// The rules, by OptimizerKind: here their names and what they keep of a parameter, in each backend their formulas.
constexpr std::string_view kNames[] = {"AdamW"};

std::vector<Optimizer::State> new_states(const OptimizerRule& rule, const Parameter& p) {
  const auto like_parameter = [&](std::string_view name) {
    return Optimizer::State{fmt::format("{}.{}", name, p.name), zeros(p.value.shape(), DType::f32, p.value.memory())};
  };
  switch (rule.kind) {
    case OptimizerKind::adamw:
      return {like_parameter("m"), like_parameter("v")};
  }
  fail("optimizer: unknown rule");
}

// Whether a copy is written in the pass that updates the parameter; copies with padded rows follow afterwards.
bool is_dense(const Tensor& copy) { return copy && copy.contiguous(); }

}  // namespace

std::string_view name_of(OptimizerKind kind) { return kNames[size_t(kind)]; }

OptimizerOptions OptimizerOptions::of(const TrainConfig& config) {
  return {.rule = {.kind = OptimizerKind::adamw, .weight_decay = float(config.weight_decay)},
          .lr = float(config.lr),
          .max_grad_norm = float(config.max_grad_norm),
          .average = float(config.ema)};
}

double lr_factor(LrSchedule schedule, int64_t step, int64_t warmup, int64_t total) {
  if (step < warmup) return double(step) / double(warmup);
  const double progress = std::min(1.0, double(step - warmup) / double(std::max<int64_t>(1, total - warmup)));
  switch (schedule) {
    case LrSchedule::constant:
      return 1;
    case LrSchedule::linear:
      return 1 - progress;
    case LrSchedule::cosine:
      return 0.5 * (1 + std::cos(M_PI * progress));
  }
  return 1;
}

Optimizer::Optimizer(std::vector<Parameter> parameters, OptimizerOptions options)
    : parameters_(std::move(parameters)), options_(options) {
  const std::string_view rule = name_of(options_.rule.kind);
  check(!parameters_.empty(), "{}: there is no parameter to train", rule);
  const MemoryScope scope(Purpose::optimizer);
  for (const Parameter& p : parameters_) {
    check(p.value.tracked() && p.value.contiguous() && p.value.dtype() == DType::f32,
          "{}: {} should be a trainable, contiguous f32 tensor, found {} {}", rule, p.name, name_of(p.value.dtype()),
          p.value.shape());
    rule_states_.push_back(new_states(options_.rule, p));
    if (options_.average > 0) averages_.push_back(clone(p.value));
  }
  constexpr float kFirstLossScale = 65536;
  scalars_ = zeros({kStepScalars}, DType::f32, parameters_.front().value.memory());
  write_scalar(kLossScale, options_.scale_loss ? kFirstLossScale : 1);
}

Tensor Optimizer::scalar(StepScalar which) const { return scalars_.window({1}, {1}, which); }
void Optimizer::write_scalar(StepScalar which, float value) {
  scalars_.memory().write(scalar(which).view().data, &value, sizeof value);
}

float Optimizer::step(const Grads& grads, float scale) {
  set(options_.lr, scale);
  update(grads);
  go_on();  // the reader of the norm decides
  return scalar(kGradNorm).item();
}

void Optimizer::set(float lr, float scale) {
  write_scalar(kLr, options_.lr = lr);
  write_scalar(kGradScale, scale);
}

void Optimizer::go_on() { write_scalar(kHalted, 0); }

void Optimizer::swap_averages() {
  for (size_t i = 0; i < averages_.size(); ++i) {
    const Tensor value = clone(parameters_[i].value);
    value.backend().copy(parameters_[i].value, averages_[i]);
    value.backend().copy(averages_[i], value);
  }
  refresh_copies();
}

void Optimizer::refresh_copies() const {
  for (const Parameter& p : parameters_)
    if (p.copy) p.copy.backend().copy(p.copy, p.value);
}

void Optimizer::update(const Grads& grads) {
  std::vector<Tensor> kept;  // gradients that had to be made contiguous live until the update is done
  std::vector<OptimizerSlot> slots;
  std::vector<View> views;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor grad = grads[parameters_[i].value];
    if (!grad) continue;
    kept.push_back(contiguous(grad));
    views.push_back(kept.back());
    const Parameter& p = parameters_[i];
    OptimizerSlot& slot = slots.emplace_back(OptimizerSlot{p.value, kept.back(), {}});
    for (const State& state : rule_states_[i]) slot.states.push_back(state.value);
    if (!averages_.empty()) slot.average = averages_[i];
    if (is_dense(p.copy)) slot.copy = p.copy;
  }
  check(!slots.empty(), "{}: no parameter has a gradient; is the loss computed from them?",
        name_of(options_.rule.kind));

  Backend& backend = parameters_.front().value.backend();
  backend.sum_of_squares(scalar(kSumOfSquares), views);
  backend.optimizer_step(slots,
                         {.rule = options_.rule,
                          .max_grad_norm = options_.max_grad_norm,
                          .average_decay = options_.average,
                          .scales_loss = options_.scale_loss},
                         scalars_);
  for (const Parameter& p : parameters_)
    if (p.copy && !is_dense(p.copy)) backend.copy(p.copy, p.value);
}

std::vector<Optimizer::State> Optimizer::states() const {
  std::vector<State> all;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    all.push_back({"param." + p.name, p.value});
    all.insert(all.end(), rule_states_[i].begin(), rule_states_[i].end());
    if (!averages_.empty()) all.push_back({"ema." + p.name, averages_[i]});
  }
  all.push_back({kScalarsName, scalars_});
  return all;
}

void GradientAccumulator::add(const std::vector<Parameter>& parameters, const Grads& grads) {
  for (const Parameter& p : parameters)
    if (const Tensor grad = grads[p.value]) add(p.value, grad);
}

void GradientAccumulator::add(const Tensor& parameter, const Tensor& grad) {
  check(parameter.tracked(), "GradientAccumulator: the parameter is not trainable(); it has no identity to sum under");
  check(parameter.shape() == grad.shape(), "GradientAccumulator: a gradient {} does not fit a parameter {}",
        grad.shape(), parameter.shape());
  sums_.add(parameter, grad);
}

Grads GradientAccumulator::take() { return std::exchange(sums_, Grads()); }

}  // namespace wick
