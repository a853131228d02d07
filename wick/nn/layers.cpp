#include "wick/nn/layers.h"

#include <utility>

namespace wick {

Linear::Linear(const Scope& s, int64_t in, int64_t out, bool bias) : Linear(s, LoraTarget{in, out}, bias) {}

Linear::Linear(const Scope& s, const LoraTarget& target, bool bias)
    : weight_{s.load("weight", {target.out, target.in}), {}}, adapter_(s.adapt(target, weight_.whole)) {
  const Shape shape{target.out};
  if (bias) bias_.whole = adapter_ ? s.load("bias", shape) : s.load_bias("bias", shape);
}

Linear::Linear(Tensor weight, Tensor bias, AdapterOfLayer adapter)
    : Linear(StackedTensor{std::move(weight), {}}, StackedTensor{std::move(bias), {}}, std::move(adapter)) {}

Linear::Linear(StackedTensor weight, StackedTensor bias, AdapterOfLayer adapter)
    : weight_(std::move(weight)), bias_(std::move(bias)), adapter_(std::move(adapter)) {}

Linear Linear::pointwise(const Scope& s, int64_t in, int64_t out) {
  return Linear(s, LoraTarget{in, out, 1, /*conv=*/true}, /*bias=*/true);
}

Linear Linear::side_by_side(const Scope& s, int64_t in, const std::vector<Output>& outputs, bool bias) {
  std::vector<std::string> weights, biases;
  std::vector<Shape> matrices, vectors;
  std::vector<LoraSite> sites;
  for (const auto& [name, width] : outputs) {
    weights.push_back(name + ".weight");
    matrices.push_back({width, in});
    biases.push_back(name + ".bias");
    vectors.push_back({width});
    sites.push_back((s / name).site({in, width}));
  }
  const auto stacks = [&](size_t i) {
    return s.dtype_of(weights[i], matrices[i]) == s.dtype_of(weights[0], matrices[0]);
  };
  for (size_t i = 1; i < outputs.size(); ++i)
    if (!stacks(i)) return Linear(s, in, outputs, bias);
  if (s.stand_apart(sites)) return Linear(s, in, outputs, bias);
  StackedTensor weight = s.load_stacked(weights, matrices);
  const AdapterOfLayer adapter = s.adapt(sites, weight.whole);
  StackedTensor shift;
  if (bias) shift = adapter ? s.load_stacked(biases, vectors) : s.load_stacked_biases(biases, vectors);
  return Linear(std::move(weight), std::move(shift), adapter);
}

Linear::Linear(const Scope& s, int64_t in, const std::vector<Output>& outputs, bool bias) {
  for (const auto& [name, width] : outputs) parts_.push_back(Linear(s / name, in, width, bias));
}

Tensor Linear::apply(const Tensor& x, const Tensor& residual, bool ends_block) const {
  if (!parts_.empty()) {
    std::vector<Tensor> outputs;
    for (const Linear& part : parts_) outputs.push_back(part(x));
    const Tensor y = cat(outputs, -1);
    return residual ? y + residual : y;
  }
  const auto joined = [](const StackedTensor& t) { return t.parts.empty() ? t.whole : stacked(t.whole, t.parts); };
  const Tensor weight = joined(weight_), bias = joined(bias_);
  return adapter_ ? adapter_->linear(x, weight, bias, residual, ends_block)
                  : linear(x, weight, bias, residual, ends_block);
}

Tensor Linear::gated(const Tensor& x) const {
  if (Tape::active() || !parts_.empty() || !weight_.parts.empty()) return swiglu((*this)(x));
  return adapter_ ? adapter_->gated_linear(x, weight_.whole, bias_.whole) : gated_linear(x, weight_.whole, bias_.whole);
}

Conv::Conv(const Scope& s, int64_t in, int64_t out, int kernel, Conv2d conv)
    : weight_(s.load_conv("weight", {out, in, kernel, kernel})),
      bias_(s.load("bias", {out})),
      conv_(conv),
      adapter_(s.adapt(LoraTarget{in, out, kernel, /*conv=*/true}, weight_)) {}

Tensor Conv::operator()(const Tensor& x, const Tensor& added) const {
  if (!adapter_) return conv2d(x, weight_, bias_, conv_, added);
  const Tensor y = adapter_->conv2d(x, weight_, bias_, conv_);
  return added ? y + added : y;
}

GroupNorm::GroupNorm(const Scope& s, int64_t channels, int group_count, float epsilon)
    : weight(s.load_norm("weight", {channels})),
      bias(s.load_norm("bias", {channels})),
      groups(group_count),
      eps(epsilon) {}

LayerNorm::LayerNorm(const Scope& s, int64_t dim, float epsilon)
    : weight(s.load_norm("weight", {dim})), bias(s.load_norm("bias", {dim})), eps(epsilon) {}

RmsNorm::RmsNorm(const Scope& s, int64_t dim, float epsilon) : weight(s.load_norm("weight", {dim})), eps(epsilon) {}

Embedding::Embedding(const Scope& s, int64_t count, int64_t dim)
    : table(s.load("weight", {count, dim})),
      activations(s.place().activations),
      adapter(s.adapt(LoraTarget{.in = dim, .out = count, .is_lookup = true}, {})) {}

void Embedding::add_words(const Scope& s, const std::string& encoder) {
  const Tensor vectors = s.adapter() ? s.adapter()->word_vectors(encoder) : Tensor();
  if (!vectors) return;
  check(vectors.dim(1) == table.dim(1), "{}: the adapter's embeddings for {} have {} numbers, and this model's {}",
        s.path(), encoder, vectors.dim(1), table.dim(1));
  const MemoryScope scope(Purpose::adapter);
  added = cast(vectors.to(table.memory()), activations);
}

Tensor Embedding::operator()(const Tensor& ids) const {
  const auto rows_of = [this](const Tensor& known) {
    return adapter ? adapter->embedding(table, known, activations) : embedding(table, known, activations);
  };
  if (!added) return rows_of(ids);
  const int64_t count = table.dim(0);
  const Tensor known = clone(ids), others = zeros(ids.shape(), DType::i64);
  std::vector<float> is_added(size_t(ids.numel()));
  for (int64_t i = 0; i < ids.numel(); ++i) {
    int64_t& id = known.data<int64_t>()[i];
    if (id < count) continue;
    others.data<int64_t>()[i] = std::exchange(id, 0) - count;
    is_added[size_t(i)] = 1;
  }
  Shape shape = ids.shape();
  shape.push_back(1);
  const Tensor choice = Tensor::of(is_added, shape).to(table.memory()), chosen = cast(choice, activations);
  return rows_of(known) * cast(affine(choice, -1, 1), activations) + embedding(added, others, activations) * chosen;
}

}  // namespace wick
