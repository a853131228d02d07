#include "wick/pipelines/text_weights.h"

#include <algorithm>
#include <numeric>

#include "wick/ops/ops.h"

namespace wick {

std::vector<LearnedWord> learned_words(const Adapter* adapter, const std::string& encoder, int64_t vocabulary) {
  std::vector<LearnedWord> all;
  if (!adapter) return all;
  for (const WordRows& word : adapter->words(encoder)) {
    LearnedWord& token = all.emplace_back(LearnedWord{word.word, std::vector<int64_t>(size_t(word.count))});
    std::iota(token.ids.begin(), token.ids.end(), vocabulary + word.first);
  }
  return all;
}

Tensor weights_tensor(const std::vector<float>& weights, const Shape& shape) {
  const bool any = std::ranges::any_of(weights, [](float weight) { return weight != 1; });
  return any ? Tensor::of(weights, shape) : Tensor();
}

Tensor weighted(const Tensor& states, const Tensor& empty, const Tensor& weights) {
  const Tensor z = cast(states, DType::f32), none = cast(empty, DType::f32);
  const Tensor more = (reshape(weights, {z.dim(0), z.dim(1), 1}) + -1.0f).to(z.memory());
  return cast(z + more * (z - none), states.dtype());
}

}  // namespace wick
