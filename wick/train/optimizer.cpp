#include "wick/train/optimizer.h"

#include <utility>

#include "wick/ops/shape.h"

namespace wick {
namespace {

// Written in the pass that updates the parameter; others, which pad their rows, are copied afterwards.
bool is_dense(const Tensor& copy) { return copy && copy.contiguous(); }

}  // namespace

AdamW::AdamW(std::vector<Parameter> parameters, AdamWOptions options)
    : parameters_(std::move(parameters)), options_(options) {
  check(!parameters_.empty(), "AdamW: there is no parameter to train");
  const MemoryScope scope(Purpose::optimizer);
  for (const Parameter& p : parameters_) {
    check(p.value.tracked() && p.value.contiguous() && p.value.dtype() == DType::f32,
          "AdamW: {} should be a trainable, contiguous f32 tensor, found {} {}", p.name, name_of(p.value.dtype()),
          p.value.shape());
    m_.push_back(zeros(p.value.shape(), DType::f32, p.value.memory()));
    v_.push_back(zeros(p.value.shape(), DType::f32, p.value.memory()));
    if (options_.average > 0) averages_.push_back(clone(p.value));
  }
  constexpr float kFirstLossScale = 65536;
  scalars_ = zeros({kAdamWScalars}, DType::f32, parameters_.front().value.memory());
  write_scalar(kLossScale, options_.scale_loss ? kFirstLossScale : 1);
}

Tensor AdamW::scalar(AdamWScalar which) const { return scalars_.window({1}, {1}, which); }
void AdamW::write_scalar(AdamWScalar which, float value) {
  scalars_.memory().write(scalar(which).view().data, &value, sizeof value);
}

float AdamW::step(const Grads& grads, float scale) {
  set(options_.lr, scale);
  update(grads);
  go_on();  // whoever sees the norm decides
  return scalar(kGradNorm).item();
}

void AdamW::set(float lr, float scale) {
  write_scalar(kLr, options_.lr = lr);
  write_scalar(kGradScale, scale);
}

void AdamW::go_on() { write_scalar(kHalted, 0); }

void AdamW::swap_averages() {
  for (size_t i = 0; i < averages_.size(); ++i) {
    const Tensor value = clone(parameters_[i].value);
    value.backend().copy(parameters_[i].value, averages_[i]);
    value.backend().copy(averages_[i], value);
  }
  refresh_copies();
}

void AdamW::refresh_copies() const {
  for (const Parameter& p : parameters_)
    if (p.copy) p.copy.backend().copy(p.copy, p.value);
}

void AdamW::update(const Grads& grads) {
  std::vector<Tensor> kept;  // gradients that had to be made contiguous live until the update is done
  std::vector<AdamWSlot> slots;
  std::vector<View> views;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor grad = grads[parameters_[i].value];
    if (!grad) continue;
    kept.push_back(contiguous(grad));
    views.push_back(kept.back());
    const Parameter& p = parameters_[i];
    slots.push_back({p.value, kept.back(), m_[i], v_[i], averages_.empty() ? View{} : averages_[i].view(),
                     is_dense(p.copy) ? p.copy.view() : View{}});
  }
  check(!slots.empty(), "AdamW: no parameter has a gradient; is the loss computed from them?");

  Backend& backend = parameters_.front().value.backend();
  backend.sum_of_squares(scalar(kSumOfSquares), views);
  backend.adamw(slots,
                {.beta1 = options_.beta1,
                 .beta2 = options_.beta2,
                 .eps = options_.eps,
                 .weight_decay = options_.weight_decay,
                 .max_grad_norm = options_.max_grad_norm,
                 .average_decay = options_.average,
                 .scales_loss = options_.scale_loss},
                scalars_);
  for (const Parameter& p : parameters_)
    if (p.copy && !is_dense(p.copy)) backend.copy(p.copy, p.value);
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
