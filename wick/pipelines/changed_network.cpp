#include "wick/pipelines/changed_network.h"

#include <algorithm>
#include <utility>

#include "wick/io/quote.h"
#include "wick/ops/finite.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

bool is_convolution(const Shape& stored) { return stored.rank() == 4 && stored[2] * stored[3] > 1; }

Tensor to_memory(const Tensor& x) {
  if (is_convolution(x.shape())) return contiguous(permute(x, {0, 2, 3, 1}));
  return x.rank() == 4 ? reshape(x, {x.dim(0), x.dim(1)}) : x;
}

Tensor from_memory(const Tensor& x, const Shape& stored) {
  return is_convolution(stored) ? contiguous(permute(x, {0, 3, 1, 2})) : reshape(x, stored);
}

// Without storage of its own.
Tensor blank(const Shape& shape) {
  Shape ones = shape;
  for (int i = 0; i < ones.rank(); ++i) ones[i] = 1;
  return expand(zeros(ones), shape);
}

int64_t elements_of(const TensorSource::Tensors& tensors) {
  int64_t sum = 0;
  for (const auto& [name, tensor] : tensors) sum += tensor.numel();
  return sum;
}

}  // namespace

Tensor ChangedNetwork::in_file(const std::string& tensor) const {
  const std::optional<StoredTensor> stored = source_.find(tensor, {});
  check(stored && stored->dtype, "{}: {} is {}, which Wick does not read", source_.name, source_.in_words(tensor),
        stored ? stored->dtype_name : "not there");
  const Tensor x = cast(stored->load(host_memory()), DType::f32);
  check(is_finite(x), "{}: {} holds values that are not finite numbers: the model is damaged", source_.name,
        source_.in_words(tensor));
  return x;
}

Tensor ChangedNetwork::in_memory(const std::string& tensor) const { return to_memory(in_file(tensor)); }

std::vector<std::string> ChangedNetwork::stored_names(const std::string& tensor, const Shape& shape) const {
  std::vector<std::string> names;
  for (const auto& [name, part] : source_.as_stored({{tensor, blank(shape)}})) names.push_back(name);
  return names;
}

std::vector<ChangedNetwork::Change> ChangedNetwork::changes() const {
  std::map<std::string, std::vector<std::string>> parts, users;  // the stored ones of a tensor, and the other way
  for (const std::string& tensor : tensors_)
    if (const std::optional<StoredTensor> found = source_.find(tensor, {}))
      for (const std::string& stored : parts[tensor] = stored_names(tensor, found->shape))
        users[stored].push_back(tensor);
  std::vector<Change> all;
  std::set<std::string> seen;
  for (const auto& [edited, edit] : edits_) {
    Change change;
    for (std::vector<std::string> open = {edited}; !open.empty();) {
      const std::string tensor = std::exchange(open.back(), {});
      open.pop_back();
      if (!seen.insert(tensor).second) continue;
      change.tensors.push_back(tensor);
      for (const std::string& stored : parts.at(tensor)) {
        if (std::ranges::find(change.stored, stored) != change.stored.end()) continue;
        change.stored.push_back(stored);
        open.insert(open.end(), users[stored].begin(), users[stored].end());
      }
    }
    if (!change.tensors.empty()) all.push_back(std::move(change));
  }
  return all;
}

ChangedNetwork::Values ChangedNetwork::values(const Change& change) const {
  TensorSource::Tensors before, after;
  for (const std::string& tensor : change.tensors) {
    const Tensor x = in_file(tensor);
    const auto edit = edits_.find(tensor);
    before[tensor] = x;
    after[tensor] = edit == edits_.end() ? x : from_memory(edit->second(to_memory(x)), x.shape());
  }
  const int64_t elements = elements_of(before);
  Values values{source_.as_stored(before), source_.as_stored(after)};
  check(elements_of(values.after) == elements, "{}: {} is made of tensors that overlap", source_.name,
        source_.in_words(change.tensors.front()));
  return values;
}

}  // namespace wick
