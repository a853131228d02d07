// PEFT's LoRA of an embedding as an algorithm of adapters: a row E_t becomes E_t + scale B A_t, with A [R, count] and
// B [dim, R]. A table [count, dim] is a target of dim inputs and count outputs.
#include <algorithm>
#include <utility>

#include "wick/io/quote.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/embedding.h"
#include "wick/ops/matmul.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

enum : size_t { kDown, kUp };

class EmbeddingLayer final : public LayerAdapter {
 public:
  // down [count, R] and up [dim, R] times the scale, in the dtype of activations
  EmbeddingLayer(Tensor down, Tensor up) : down_(std::move(down)), up_(std::move(up)) {}

  Tensor forward(const LayerBelow&, const Tensor&, const Tensor&, const Tensor&, bool) const override {
    fail("a LoRA of an embedding has ids, and no inputs");
  }
  Tensor looked_up(const Tensor& ids, const Tensor& rows) const override {
    return linear(embedding(down_, ids, rows.dtype()), up_, {}, rows);
  }
  Tensor merged(const Tensor& table) const override {
    const auto wide = [&](const Tensor& factor) { return cast(factor.to(table.memory()), DType::f32); };
    return cast(table, DType::f32) + linear(wide(down_), wide(up_));
  }
  bool needs_weight() const override { return true; }

 private:
  Tensor down_, up_;
};

class EmbeddingAlgorithm final : public AppliedAlgorithm {
 public:
  const char* name() const override { return "LoRA of an embedding"; }

  const std::vector<Factor>& factors() const override {
    static const std::vector<Factor> all = {
        {.name = "down", .suffixes = {".lora_embedding_A", ".lora_embedding_A.default"}, .frozen_only = true},
        {.name = "up", .suffixes = {".lora_embedding_B", ".lora_embedding_B.default"}, .frozen_only = true}};
    return all;
  }

  int64_t rank(const AdapterModule& module) const override { return module.factors[kUp].value.dim(1); }

  void from_file(AdapterModule& module, const std::string& file) const override {
    const AdapterFactor &down = module.factors[kDown], &up = module.factors[kUp];
    const int64_t rank = down.value.rank() == 2 ? down.value.dim(0) : 0;
    check_shape(down, {std::max<int64_t>(rank, 1), module.target.out}, file);
    check_shape(up, {module.target.in, rank}, file);
  }

  std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t, const Residence& place,
                                            const LoraDropout&) const override {
    AdapterModule& module = *parts.front().module;
    const auto placed = [&](const Tensor& value) { return cast(value.to(*place.memory), place.activations); };
    const Tensor down = contiguous(transpose(module.factors[kDown].value, 0, 1));
    return std::make_shared<EmbeddingLayer>(placed(down), placed(module.factors[kUp].value * module.total_scale()));
  }
};

}  // namespace

const AdapterAlgorithm& embedding_algorithm() {
  static const EmbeddingAlgorithm embedding;
  return embedding;
}

}  // namespace wick
