// An exponential moving average of the parameters, which often draws better than the last step's (Polyak averaging).
#pragma once

#include <vector>

#include "wick/nn/weights.h"

namespace wick {

class Ema {
 public:
  Ema(std::vector<Parameter> parameters, float decay);

  // After optimizer step `step`, counted from 1. Early steps decay faster, or the start would linger: min(decay,
  // (1 + step) / (10 + step)).
  void update(int64_t step);
  const std::vector<Tensor>& averages() const { return averages_; }
  // Exchanges the parameters' values for the averages', and back when called again.
  void swap();

 private:
  std::vector<Parameter> parameters_;
  std::vector<Tensor> averages_;
  float decay_;
};

}  // namespace wick
