// Which tensor a NaN or an infinity was in first.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "wick/train/optimizer.h"
#include "wick/train/task.h"

namespace wick {

bool is_finite(const Tensor& tensor);  // f32, any strides

// Each gives the name of the first tensor that is not finite, or an empty string; together they follow a step from its
// inputs on. The third computes the next loss, and looks at its inputs and then at each operation.
std::string not_finite_in_files(const std::filesystem::path& model);
std::string not_finite_in_values(const std::vector<Parameter>& parameters);
std::string not_finite_in_forward(Task& task, TrainRng& rng);
std::string not_finite_in_gradients(const std::vector<Parameter>& parameters, const Grads& grads);

}  // namespace wick
