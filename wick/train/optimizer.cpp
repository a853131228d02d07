#include "wick/train/optimizer.h"

#include <utility>

#include "wick/ops/shape.h"

namespace wick {

AdamW::AdamW(std::vector<Parameter> parameters, AdamWOptions options)
    : parameters_(std::move(parameters)), options_(options) {
  check(!parameters_.empty(), "AdamW: there is no parameter to train");
  for (const Parameter& p : parameters_) {
    check(p.value.tracked() && p.value.contiguous() && p.value.dtype() == DType::f32,
          "AdamW: {} should be a trainable, contiguous f32 tensor, found {} {}", p.name, name_of(p.value.dtype()),
          p.value.shape());
    m_.push_back(zeros(p.value.shape(), DType::f32, p.value.memory()));
    v_.push_back(zeros(p.value.shape(), DType::f32, p.value.memory()));
  }
  scalars_ = zeros({kAdamWScalars}, DType::f32, parameters_.front().value.memory());
}

Tensor AdamW::scalar(AdamWScalar which) const { return scalars_.window({1}, {1}, which); }
void AdamW::write_scalar(AdamWScalar which, float value) {
  scalars_.memory().write(scalar(which).view().data, &value, sizeof value);
}

int64_t AdamW::steps() const { return int64_t(scalar(kSteps).item()); }
void AdamW::set_steps(int64_t steps) { write_scalar(kSteps, float(steps)); }

float AdamW::step(const Grads& grads, float scale) {
  std::vector<Tensor> kept;  // gradients that had to be made contiguous live until the update is done
  std::vector<AdamWSlot> slots;
  std::vector<View> views;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor grad = grads[parameters_[i].value];
    if (!grad) continue;
    kept.push_back(contiguous(grad));
    views.push_back(kept.back());
    slots.push_back({parameters_[i].value, kept.back(), m_[i], v_[i]});
  }
  check(!slots.empty(), "AdamW: no parameter has a gradient; is the loss computed from them?");

  Backend& backend = parameters_.front().value.backend();
  write_scalar(kLr, options_.lr);
  write_scalar(kGradScale, scale);
  backend.sum_of_squares(scalar(kSumOfSquares), views);
  backend.adamw(slots,
                {.beta1 = options_.beta1,
                 .beta2 = options_.beta2,
                 .eps = options_.eps,
                 .weight_decay = options_.weight_decay,
                 .max_grad_norm = options_.max_grad_norm},
                scalars_);
  return scalar(kGradNorm).item();
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
