#include "wick/train/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

// The rules, by OptimizerKind: here their defaults (docs/defaults.md has the reasons) and what they keep of a
// parameter, in each backend their formulas.
struct Defaults {
  double lr;
  float beta1, beta2;
};
constexpr Defaults kDefaults[] = {
    {1e-4, 0.9f, 0.999f},  // adamw
    {1e-4, 0.9f, 0.999f},  // adamw8bit
    {3e-5, 0.9f, 0.99f},   // lion
    {3e-5, 0.9f, 0.99f},   // lion8bit
    {1e-4, 0, 0},          // adafactor
    {1, 0.9f, 0.99f},      // prodigy
    {1e-4, 0.9f, 0.999f},  // schedule-free
    {1e-4, 0.9f, 0.999f},  // radam-schedule-free
};

using States = std::vector<Optimizer::State>;

Optimizer::State whole_state(std::string name, const Tensor& value) {
  return {std::move(name), value, value.shape(), value.dtype()};
}

// States at the start, in the order of OptimizerKind's comments; without values where another rank keeps them.
class NewStates {
 public:
  NewStates(const Parameter& p, int owner, bool is_owned) : p_(p), owner_(owner), is_owned_(is_owned) {}

  States operator()(OptimizerKind kind) && {
    switch (kind) {
      case OptimizerKind::adamw:
        return zero("m"), zero("v"), std::move(all_);
      case OptimizerKind::adamw8bit:
        return coded({"m", "v"}), std::move(all_);
      case OptimizerKind::lion:
        return zero("m"), std::move(all_);
      case OptimizerKind::lion8bit:
        return coded({"m"}), std::move(all_);
      case OptimizerKind::adafactor:
        return means(), std::move(all_);
      case OptimizerKind::prodigy:
        return zero("m"), zero("v"), zero("s"), value("first"), std::move(all_);
      case OptimizerKind::schedule_free:
      case OptimizerKind::radam_schedule_free:
        return zero("v"), value("z"), std::move(all_);
    }
    fail("optimizer: unknown rule");
  }

 private:
  void add(std::string_view name, Tensor state, const Shape& shape, DType dtype = DType::f32) {
    all_.push_back({fmt::format("{}.{}", name, p_.name), std::move(state), shape, dtype, owner_});
  }
  void zero(std::string_view name, const Shape& shape, DType dtype = DType::f32) {
    add(name, is_owned_ ? zeros(shape, dtype, p_.value.memory()) : Tensor(), shape, dtype);
  }
  void zero(std::string_view name) { zero(name, p_.value.shape()); }
  void value(std::string_view name) { add(name, is_owned_ ? clone(p_.value) : Tensor(), p_.value.shape()); }

  void coded(std::initializer_list<std::string_view> names) {
    const int64_t numel = p_.value.numel();
    const bool small = numel < kFewestFor8Bit;
    for (const std::string_view name : names) zero(name, p_.value.shape(), small ? DType::f32 : DType::u8);
    if (small) return;
    for (const std::string_view name : names)
      zero(fmt::format("{}_absmax", name), {(numel + k8BitBlock - 1) / k8BitBlock});
  }

  void means() {
    if (p_.value.rank() < 2) return zero("v");
    const Shape& shape = p_.value.shape();
    Shape column(shape.begin(), shape.end() - 2);
    column.push_back(shape.back());
    zero("row", Shape(shape.begin(), shape.end() - 1));
    zero("column", column);
  }

  const Parameter& p_;
  const int owner_;
  const bool is_owned_;
  States all_;
};

// Whether a copy is written in the pass that updates the parameter; copies with padded rows follow afterwards.
bool is_dense(const Tensor& copy) { return copy && copy.contiguous(); }

double base_lr(const TrainConfig& config) { return config.lr.value > 0 ? config.lr.value : default_lr(config); }

// At t = 10 000 the three are the same, so that a rate of 0.01 does not limit a warm-up.
double relative_step(const TrainConfig& config, int64_t step) {
  const double t = double(step + 1), most = std::min(base_lr(config), 1 / std::sqrt(t));
  return config.adafactor_warmup_init ? std::min(most, 1e-6 * t) : most;
}

void set_arguments(OptimizerRule& rule, const TrainConfig& config) {
  rule.weight_decay = float(config.weight_decay);
  if (config.betas.size() >= 2) rule.beta1 = float(config.betas[0]), rule.beta2 = float(config.betas[1]);
  const std::vector<double>& eps = config.eps;
  if (!eps.empty()) rule.eps = float(eps[0]);
  const AdafactorRule own;
  rule.adafactor = {.eps = eps.empty() ? own.eps : eps[0],
                    .scale_eps = eps.size() < 2 ? own.scale_eps : eps[1],
                    .clip_threshold = config.adafactor_clip_threshold,
                    .decay_rate = config.adafactor_decay_rate,
                    .scale_parameter = config.adafactor_scale_parameter};
  ProdigyRule& prodigy = rule.prodigy;
  prodigy.d0 = float(config.prodigy_d0);
  prodigy.d_coef = float(config.prodigy_d_coef);
  if (config.prodigy_growth_rate > 0) prodigy.growth_rate = float(config.prodigy_growth_rate);
  if (config.betas.size() == 3) prodigy.beta3 = float(config.betas[2]);
  prodigy.use_bias_correction = config.prodigy_use_bias_correction;
  prodigy.safeguard_warmup = config.prodigy_safeguard_warmup;
  prodigy.decouple = config.prodigy_decouple;
  prodigy.slice_p = config.prodigy_slice_p;
  rule.schedule_free = {.r = config.schedule_free_r, .weight_lr_power = config.schedule_free_weight_lr_power};
}

}  // namespace

double default_lr(OptimizerKind kind) { return kDefaults[size_t(kind)].lr; }

double default_lr(const TrainConfig& config) {
  return config.adafactor_relative_step ? 1e-2 : default_lr(config.optimizer);
}

OptimizerOptions OptimizerOptions::of(OptimizerKind kind) {
  const Defaults& defaults = kDefaults[size_t(kind)];
  return {.rule = {.kind = kind, .beta1 = defaults.beta1, .beta2 = defaults.beta2}, .lr = float(defaults.lr)};
}

OptimizerOptions OptimizerOptions::of(const TrainConfig& config) {
  OptimizerOptions options = of(config.optimizer);
  set_arguments(options.rule, config);
  if (config.lr.value > 0) options.lr = float(config.lr.value);
  options.max_grad_norm = float(config.max_grad_norm);
  options.average = float(config.ema);
  options.average_warmup = config.ema_warmup;
  return options;
}

double lr_factor(const TrainConfig& config, int64_t step) {
  const int64_t warmup = config.warmup.of(config.steps);
  if (step < warmup) return double(step) / double(warmup);
  const double progress = std::min(1.0, double(step - warmup) / double(std::max<int64_t>(1, config.steps - warmup)));
  switch (config.lr_schedule) {
    case LrSchedule::constant:
      return 1;
    case LrSchedule::linear:
      return 1 - progress;
    case LrSchedule::cosine:
      return 0.5 * (1 + std::cos(M_PI * progress));
    case LrSchedule::cosine_with_restarts:
      if (progress >= 1) return 0;
      return 0.5 * (1 + std::cos(M_PI * std::fmod(double(config.lr_scheduler_num_cycles) * progress, 1)));
    case LrSchedule::polynomial: {
      const double end = std::min(1.0, 1e-7 / base_lr(config));
      return end + (1 - end) * std::pow(1 - progress, config.lr_scheduler_power);
    }
  }
  return 1;
}

double learning_rate(const TrainConfig& config, int64_t step) {
  const double lr = base_lr(config);
  if (config.adafactor_relative_step) return relative_step(config, step);
  if (!is_schedule_free(config.optimizer)) return lr * lr_factor(config, step);
  const int64_t warmup = config.warmup.of(config.steps);
  return step < warmup ? lr * double(step + 1) / double(warmup) : lr;
}

Optimizer::Optimizer(std::vector<Parameter> parameters, OptimizerOptions options, Shard shard)
    : parameters_(std::move(parameters)),
      options_(options),
      shard_(shard),
      owners_(owners_of(parameters_, shard.count)) {
  const OptimizerKind kind = options_.rule.kind;
  const std::string_view rule = name_of(kind);
  check(!is_schedule_free(kind) || (options_.average == 0 && options_.rule.beta1 > 0),
        "{}: averages the parameters itself, by beta1; expected average 0 and beta1 above 0, found {} and {}", rule,
        options_.average, options_.rule.beta1);
  check(kind != OptimizerKind::prodigy || !is_sharded(), "{}: its estimate needs the states of all parameters", rule);
  check(!parameters_.empty(), "{}: there is no parameter to train", rule);
  const MemoryScope scope(Purpose::optimizer);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    check(p.value.tracked() && p.value.contiguous() && p.value.dtype() == DType::f32,
          "{}: {} should be a trainable, contiguous f32 tensor, found {} {}", rule, p.name, name_of(p.value.dtype()),
          p.value.shape());
    rule_states_.push_back(NewStates(p, owners_[i], owns(i))(kind));
    if (options_.average > 0) averages_.push_back(owns(i) ? clone(p.value) : Tensor());
  }
  std::vector<std::string> names;
  for (const Parameter& p : parameters_) names.push_back(p.name);
  parts_ = model_parts_of(names);
  sums_by_part_ = zeros({int64_t(parts_.names.size())}, DType::f32, parameters_.front().value.memory());
  constexpr float kFirstLossScale = 65536;
  scalars_ = zeros({scalars_of(options_.rule)}, DType::f32, parameters_.front().value.memory());
  if (kind == OptimizerKind::prodigy) write_scalar(kProdigyD, options_.rule.prodigy.d0);
  if (limits_growth(options_.rule)) write_scalar(kProdigyLargestD, options_.rule.prodigy.d0);
  write_scalar(kLossScale, options_.scale_loss ? kFirstLossScale : 1);
}

Tensor Optimizer::scalar(int which) const { return scalars_.window({1}, {1}, which); }
void Optimizer::write_scalar(int which, float value) {
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
  if (is_schedule_free(kind())) swap_schedule_free();
  for (size_t i = 0; i < averages_.size(); ++i) {
    if (!owns(i)) continue;
    const Tensor value = clone(parameters_[i].value);
    value.backend().copy(parameters_[i].value, averages_[i]);
    value.backend().copy(averages_[i], value);
  }
  refresh_copies();
}

// Rounding keeps y from being found again from x and z: it is put aside.
void Optimizer::swap_schedule_free() {
  const std::vector<Tensor> back = std::exchange(put_aside_, {});
  if (back.empty()) put_aside_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!owns(i)) continue;
    const Tensor y = parameters_[i].value.detached();
    Backend& backend = y.backend();
    if (!back.empty()) {
      backend.copy(y, back[i].to(y.memory()));
      continue;
    }
    put_aside_[i] = y.memory().on_host() ? clone(y) : y.to(host_memory());
    backend.accumulate(y, rule_states_[i].back().value - y, 1 - 1 / options_.rule.beta1);
  }
}

void Optimizer::refresh_copies() const {
  for (const Parameter& p : parameters_)
    if (p.copy) p.copy.backend().copy(p.copy, p.value);
}

void Optimizer::update(const Grads& grads) {
  std::vector<Tensor> kept;  // gradients that had to be made contiguous live until the update is done
  std::vector<Copied> strided;
  const auto dense = [&strided](const Tensor& grad) {
    if (grad.contiguous() || grad.dtype() != DType::f32) return contiguous(grad);
    Tensor copy = Tensor::empty(grad.shape(), DType::f32, grad.memory());
    strided.push_back({copy, grad});
    return copy;
  };
  std::vector<OptimizerSlot> slots;
  std::vector<std::vector<View>> by_part(parts_.names.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor grad = grads[parameters_[i].value];
    if (!grad) continue;
    kept.push_back(dense(grad));
    by_part[parts_.of[i]].push_back(kept.back());
    if (!owns(i)) continue;
    const Parameter& p = parameters_[i];
    OptimizerSlot& slot = slots.emplace_back(OptimizerSlot{.param = p.value, .grad = kept.back(), .rate = p.rate});
    for (const State& state : rule_states_[i]) slot.states.push_back(state.value);
    if (!averages_.empty()) slot.average = averages_[i];
    if (is_dense(p.copy)) slot.copy = p.copy;
  }
  check(!kept.empty(), "{}: no parameter has a gradient; is the loss computed from them?", name_of(options_.rule.kind));

  Backend& backend = parameters_.front().value.backend();
  backend.copy_many(strided, /*add=*/false);
  for (size_t k = 0; k < by_part.size(); ++k)
    backend.sum_of_squares(sums_by_part_.window({1}, {1}, int64_t(k)), by_part[k]);
  backend.sum(scalar(kSumOfSquares), sums_by_part_);
  backend.optimizer_step(slots,
                         {.rule = options_.rule,
                          .max_grad_norm = options_.max_grad_norm,
                          .average_decay = options_.average,
                          .average_warmup = options_.average_warmup,
                          .scales_loss = options_.scale_loss},
                         scalars_);
  std::vector<Copied> padded;
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (const Parameter& p = parameters_[i]; owns(i) && p.copy && !is_dense(p.copy))
      padded.push_back({p.copy, p.value});
  backend.copy_many(padded, /*add=*/false);
}

std::vector<Optimizer::State> Optimizer::states() const {
  States all;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    all.push_back(whole_state("param." + p.name, p.value));
    all.insert(all.end(), rule_states_[i].begin(), rule_states_[i].end());
    if (!averages_.empty()) all.push_back({"ema." + p.name, averages_[i], p.value.shape(), DType::f32, owners_[i]});
  }
  all.push_back(whole_state(kScalarsName, scalars_));
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
