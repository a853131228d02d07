#include "wick/train/finite.h"

#include <fmt/format.h>

#include "wick/io/safetensors.h"
#include "wick/ops/shape.h"

namespace wick {

std::string not_finite_in_files(const Checkpoint& model) {
  for (const std::filesystem::path& path : model.files()) {
    if (path.extension() != ".safetensors") continue;
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const auto& [name, info] : file.tensors())
      if (info.dtype && is_float(*info.dtype) && !is_finite(cast(file.load(name), DType::f32)))
        return path.string() + ": " + name;
  }
  return {};
}

std::string not_finite_in_values(const std::vector<Parameter>& parameters) {
  for (const Parameter& p : parameters)
    if (!is_finite(p.value)) return p.name;
  return {};
}

std::string not_finite_in_batch(Task& task, TrainRng& rng, const Tensor& loss_scale) {
  const NamedTensors batch = task.next_batch(rng);
  for (const auto& [name, value] : batch)
    if (is_float(value.dtype()) && !is_finite(value)) return "the batch's " + name;
  std::string in_operation;
  int64_t count = 0;
  Tape tape;
  tape.observe([&](const Op& op, const Tensor& y) {
    ++count;
    if (in_operation.empty() && !is_finite(y))
      in_operation = fmt::format("the output {} of {}, operation {} of the step", y.shape(), op.name(), count);
  });
  const Tensor loss = task.loss(batch);
  if (!in_operation.empty()) return in_operation;
  if (!is_finite(loss)) return "the loss";
  Grads grads;
  tape.backward(loss, loss_scale, grads);
  for (const Parameter& p : task.parameters())
    if (!is_finite(grads[p.value])) return "the gradient of " + p.name;
  return {};
}

}  // namespace wick
