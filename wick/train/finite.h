// Which tensor a NaN or an infinity was in first.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "wick/train/optimizer.h"
#include "wick/train/task.h"

namespace wick {

bool is_finite(const Tensor& tensor);  // f32, any strides
bool all_finite(const std::vector<Parameter>& parameters);

// Looks in the order in which a step computes: the model's files, the batch, the parameters, the loss, the gradients.
// The name of the first tensor that is not finite, or an empty string.
std::string first_not_finite(const std::filesystem::path& model, const Task& task, const Tensor& loss,
                             const std::vector<Parameter>& parameters, const Grads& grads);

}  // namespace wick
