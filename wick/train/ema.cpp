#include "wick/train/ema.h"

#include <algorithm>
#include <utility>

#include "wick/ops/shape.h"

namespace wick {

Ema::Ema(std::vector<Parameter> parameters, float decay) : parameters_(std::move(parameters)), decay_(decay) {
  for (const Parameter& p : parameters_) averages_.push_back(clone(p.value));
}

void Ema::update(int64_t step) {
  const float decay = std::min(decay_, float(1 + step) / float(10 + step));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& value = parameters_[i].value;
    const Tensor away = Tensor::empty(value.shape(), DType::f32, value.memory());
    away.backend().binary(Binary::sub, away, value, averages_[i]);
    away.backend().accumulate(averages_[i], away, 1 - decay);
  }
}

void Ema::swap() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor value = clone(parameters_[i].value);
    value.backend().copy(parameters_[i].value, averages_[i]);
    value.backend().copy(averages_[i], value);
  }
}

}  // namespace wick
