#include "wick/nn/token_rows.h"

#include <algorithm>

#include "wick/io/quote.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

// Its modules become LoRAs when they are read.
class TokenRowsAlgorithm final : public AppliedAlgorithm {
 public:
  const char* name() const override { return "trained token"; }

  const std::vector<Factor>& factors() const override {
    static const std::vector<Factor> all = {
        {.name = "rows", .suffixes = {".token_adapter.trainable_tokens_delta"}, .frozen_only = true}};
    return all;
  }

  void from_file(AdapterModule& module, const std::string& file) const override {
    fail("{}: {} has rows of tokens, and this layer has none", file, quote(module.name));
  }
  std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t, const Residence&,
                                            const LoraDropout&) const override {
    fail("{} has rows of tokens, and this layer has none", parts.front().module->name);
  }
};

// A one where row i of [n, count] meets token i.
Tensor places_of(const std::vector<int64_t>& tokens, int64_t count) {
  std::vector<float> ones(tokens.size() * size_t(count));
  for (size_t i = 0; i < tokens.size(); ++i) ones[i * size_t(count) + size_t(tokens[i])] = 1;
  return Tensor::of(ones, {int64_t(tokens.size()), count});
}

Tensor rows_of(const Tensor& base, const std::vector<int64_t>& tokens) {
  std::vector<Tensor> rows;
  for (const int64_t token : tokens) rows.push_back(slice(base, 0, token, token + 1));
  return cast(cat(rows, 0), DType::f32);
}

}  // namespace

const AdapterAlgorithm& token_rows_algorithm() {
  static const TokenRowsAlgorithm rows;
  return rows;
}

AdapterModule lora_of_token_rows(const std::string& name, const LoraTarget& target, const AdapterFactor& rows,
                                 const std::vector<int64_t>& tokens, const Tensor& base, const std::string& what) {
  const auto n = int64_t(tokens.size());
  check(n > 0 && rows.value.shape() == Shape{n, target.in},
        "{}: {} should have shape [{}, {}] for this model, found {}", what, quote(rows.key), n, target.in,
        rows.value.shape());
  std::vector<int64_t> sorted = tokens;
  std::ranges::sort(sorted);
  check(sorted.front() >= 0 && sorted.back() < target.out,
        "{}: token {} is not among the {} of this model: Wick keeps the model's vocabulary", what,
        sorted.front() < 0 ? sorted.front() : sorted.back(), target.out);
  check(std::ranges::adjacent_find(sorted) == sorted.end(), "{}: a token is named twice", what);
  check(!base || is_float(base.dtype()), "{}: that needs the model's own weights, and those here are quantised, {}",
        what, base ? name_of(base.dtype()) : "");
  const Tensor change = base ? rows.value - rows_of(base, tokens) : zeros(rows.value.shape());
  const Tensor places = places_of(tokens, target.out),
               turned = contiguous(transpose(target.is_lookup ? change : places, 0, 1));
  AdapterModule module{name, target, target.is_lookup ? &embedding_algorithm() : &lora_algorithm()};
  module.factors = {{rows.key, target.is_lookup ? places : change}, {rows.key, turned}};
  module.alpha = float(n);
  return module;
}

}  // namespace wick
