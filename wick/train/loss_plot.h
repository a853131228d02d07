// The loss curve as a picture, for users without TensorBoard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "wick/io/image.h"

namespace wick {

struct LossPoint {
  int64_t step = 0;
  double loss = 0, lr = 0;  // lr: where the optimizer finds it, what it found
  std::optional<double> validation = {};
};

// Each step's loss in a light colour, their moving average in a dark one, losses of validation as dots, and the
// learning rate by an axis of its own. `points` are finite and ordered by step.
Image plot_loss(const std::vector<LossPoint>& points, const std::string& title);

// The mean over `window` points around each, fewer at the curve's ends.
std::vector<double> smoothed(const std::vector<LossPoint>& points, size_t window);
// Round numbers (1, 2 or 5 times a power of ten apart) that cover [low, high], about `count` of them.
std::vector<double> axis_ticks(double low, double high, int count);

}  // namespace wick
