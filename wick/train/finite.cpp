#include "wick/train/finite.h"

#include <algorithm>
#include <cmath>

#include "wick/io/safetensors.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

std::string in_file(const fs::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  for (const auto& [name, info] : file.tensors())
    if (info.dtype && is_float(*info.dtype) && !is_finite(cast(file.load(name), DType::f32)))
      return path.string() + ": " + name;
  return {};
}

std::string in_model(const fs::path& model) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const char* component : {"text_encoder", "text_encoder_2", "unet", "vae"})
    for (const auto& entry : fs::directory_iterator(model / component, ignored))
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files)
    if (std::string found = in_file(file); !found.empty()) return found;
  return {};
}

}  // namespace

bool is_finite(const Tensor& tensor) {
  if (!tensor) return true;
  Memory& memory = tensor.memory();
  const Tensor total = Tensor::empty({1}, DType::f32, memory), once = contiguous(tensor.detached());
  memory.backend->sum_of_squares(total, {once});
  if (std::isfinite(total.item())) return true;
  // Large numbers overflow when squared without being infinite themselves.
  const std::vector<float> values = once.to_vector();
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

bool all_finite(const std::vector<Parameter>& parameters) {
  return std::all_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return is_finite(p.value); });
}

std::string first_not_finite(const fs::path& model, const Task& task, const Tensor& loss,
                             const std::vector<Parameter>& parameters, const Grads& grads) {
  if (std::string found = in_model(model); !found.empty()) return found;
  for (const NamedTensor& input : task.last_inputs())
    if (!is_finite(input.value)) return input.name;
  for (const Parameter& p : parameters)
    if (!is_finite(p.value)) return p.name;
  if (!is_finite(loss)) return "the loss";
  for (const Parameter& p : parameters)
    if (!is_finite(grads[p.value])) return "the gradient of " + p.name;
  return {};
}

}  // namespace wick
