// Which tensor a NaN or an infinity was in first.
#pragma once

#include <string>
#include <vector>

#include "wick/ops/finite.h"
#include "wick/train/optimizer.h"
#include "wick/train/task.h"

namespace wick {

// Each gives the name of the first tensor that is not finite, or an empty string; together they follow a step from its
// inputs on. The third computes the next loss, and looks at its inputs, at each operation and at the gradients, which
// start from `loss_scale`.
std::string not_finite_in_files(const Checkpoint& model);
std::string not_finite_in_values(const std::vector<Parameter>& parameters);
std::string not_finite_in_batch(Task& task, TrainRng& rng, const Tensor& loss_scale);

}  // namespace wick
