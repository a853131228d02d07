// LoRA (Hu et al., 2021) as an algorithm of adapters: down [R, in] ([R, KH, KW, in] for convolutions) and up [out, R];
// the module's change is scale * up down. Files may have a Tucker core of a convolution between both (LyCORIS' LoCon),
// and a bias of up (PEFT's lora_bias).
#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "wick/io/quote.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/matmul.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

constexpr size_t kDown = 0, kUp = 1, kMid = 2, kBias = 3;

Tensor& down_of(AdapterModule& module) { return module.factors[kDown].value; }
Tensor& up_of(AdapterModule& module) { return module.factors[kUp].value; }

class LoraLayer final : public LayerAdapter {
 public:
  // `shift` is f32 [outputs], or empty.
  LoraLayer(Lora lora, Tensor shift) : lora_(std::move(lora)), shift_(std::move(shift)) {}

  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool ends_block) const override {
    return lora_on(below, x, bias, lora_, residual, ends_block);
  }
  Tensor forward_outputs(const LayerBelow& below, int64_t first, int64_t end, const Tensor& x, const Tensor& bias,
                         const Tensor& residual) const override {
    const LayerBelow part = below.outputs(first, end);
    const Lora lora = lora_of(first, end);
    return lora.parts.empty() ? part(x, bias, residual) : lora_on(part, x, bias, lora, residual, false);
  }
  Tensor gated_linear(const Tensor& x, const Tensor& w, const Tensor& bias) const override {
    return lora_gated_linear(x, w, bias, lora_);
  }
  Tensor merged(const Tensor& w) const override {
    const Tensor base = cast(w, DType::f32);
    std::vector<Tensor> rows;
    int64_t done = 0;
    for (const LoraPart& part : lora_.parts) {
      const int64_t end = part.column + part.up.shape[0];
      const Tensor down = slice(lora_.down, 0, part.row, part.row + part.up_values.dim(1));
      const Tensor change =
          matmul(cast(part.up_values, DType::f32), cast(reshape(down, {down.dim(0), -1}), DType::f32));
      if (part.column > done) rows.push_back(slice(base, 0, done, part.column));
      const Tensor part_of_base = slice(base, 0, part.column, end);
      rows.push_back(part_of_base + reshape(change, part_of_base.shape()) * part.scale);
      done = end;
    }
    if (done < base.dim(0)) rows.push_back(slice(base, 0, done, base.dim(0)));
    return cat(rows, 0);
  }
  Tensor merged_bias(const Tensor& bias) const override {
    if (!shift_) return bias;
    return bias ? bias + shift_.to(bias.memory()) : shift_;
  }
  bool changes_bias() const override { return bool(shift_); }

 private:
  // Of outputs [first, end), with its rows of the downs. A trained part has all of its outputs there, or none: it
  // shares them with no other file.
  Lora lora_of(int64_t first, int64_t end) const {
    Lora some;
    int64_t row = 0, rows = 0;
    for (const LoraPart& part : lora_.parts) {
      const int64_t begin = std::max(first, part.column), stop = std::min(end, part.column + part.up.shape[0]);
      if (begin >= stop) continue;
      if (some.parts.empty()) row = part.row;
      rows = part.row + part.up_values.dim(1) - row;
      const Tensor values = slice(part.up_values.detached(), 0, begin - part.column, stop - part.column);
      assert(!part.up.tracked() || stop - begin == part.up.shape[0]);
      const Input up = part.up.tracked() ? part.up : Input(slice(values, 1, 0, part.up.shape[1]));
      some.parts.push_back({part.down, up, values, begin - first, part.row - row, part.scale});
    }
    if (!some.parts.empty()) some.down = slice(lora_.down.detached(), 0, row, row + rows);
    return some;
  }

  Lora lora_;
  Tensor shift_;
};

// Rows of all downs, each count rounded up to a multiple of `unit`, as one tensor.
Shape shape_of_downs(const std::vector<PlacedModule>& parts, const std::function<int64_t(int64_t)>& padded) {
  Shape shape = down_of(*parts.front().module).shape();
  shape[0] = 0;
  for (const PlacedModule& part : parts) shape[0] += padded(down_of(*part.module).dim(0));
  return shape;
}

// Computes with the factors themselves: several downs become rows of one tensor.
Lora joined(const std::vector<PlacedModule>& parts, Memory& memory) {
  Lora lora;
  if (parts.size() > 1)
    lora.down = Tensor::empty(shape_of_downs(parts, [](int64_t rank) { return rank; }), DType::f32, memory);
  int64_t row = 0;
  for (const auto& [module, column] : parts) {
    for (const size_t factor : {kDown, kUp}) module->factors[factor].place(memory);
    Tensor &down = down_of(*module), &up = up_of(*module);
    if (!lora.down) {
      lora.down = down;
    } else {
      const Tensor rows = lora.down.window(down.shape(), contiguous_strides(down.shape()), row * lora.down.stride()[0]);
      rows.backend().copy(rows, down);
      down = down.tracked() ? rows.trainable() : rows;
    }
    lora.parts.push_back({down, up, up, column, row, module->total_scale()});
    row += up.dim(1);
  }
  return lora;
}

// Computes with copies. The kernels want rows of 16 bytes: each down has a multiple of `unit` rows, and each up as many
// columns, padded with zeros, as if that were their rank. The ups are stacked in the order of their outputs.
Lora copied(const std::vector<PlacedModule>& parts, int64_t outputs, const Residence& place) {
  const int64_t unit = 16 / int64_t(size_of(place.activations));
  const auto padded = [unit](int64_t rank) { return (rank + unit - 1) / unit * unit; };
  int64_t widest = 0;
  for (const PlacedModule& part : parts) widest = std::max(widest, padded(up_of(*part.module).dim(1)));
  Lora lora{zeros(shape_of_downs(parts, padded), place.activations, *place.memory), {}};
  const Tensor ups = zeros({outputs, widest}, place.activations, *place.memory);
  int64_t row = 0;
  for (const auto& [module, column] : parts) {
    AdapterFactor &down = module->factors[kDown], &up = module->factors[kUp];
    const Shape& shape = down.value.shape();
    down.copy = lora.down.window(shape, contiguous_strides(shape), row * lora.down.stride()[0]);
    const Shape padded_up{up.value.dim(0), padded(up.value.dim(1))};
    up.copy = ups.window(up.value.shape(), ups.stride(), column * widest);
    for (AdapterFactor* factor : {&down, &up}) {
      if (module->is_trained()) factor->place(*place.memory);  // the values of frozen factors are not needed again
      factor->copy.backend().copy(factor->copy, factor->value.to(*place.memory));
    }
    const Tensor up_values = ups.window(padded_up, ups.stride(), column * widest);
    lora.parts.push_back({down.value, up.value, up_values, column, row, module->total_scale()});
    row += padded_up[1];
  }
  const auto is_trained = [](const PlacedModule& part) { return part.module->is_trained(); };
  if (std::none_of(parts.begin(), parts.end(), is_trained)) lora.down = lora.down.constant();
  return lora;
}

// The sum of the ups' biases, in the order of the layer's outputs; empty where there is none.
Tensor shift_of(const std::vector<PlacedModule>& parts, int64_t outputs, Memory& memory) {
  Tensor shift;
  for (const auto& [module, column] : parts) {
    const Tensor bias = module->factors.size() > kBias ? module->factors[kBias].value : Tensor();
    if (!bias) continue;
    if (!shift) shift = zeros({outputs}, DType::f32, memory);
    const Tensor part = slice(shift, 0, column, column + bias.dim(0));
    part.backend().copy(part, affine(bias.to(memory), module->total_scale(), 0));
  }
  return shift;
}

class LoraAlgorithm final : public AdapterAlgorithm {
 public:
  const char* name() const override { return "LoRA"; }

  // Spellings of kohya, PEFT, diffusers before and after 0.20.
  const std::vector<Factor>& factors() const override {
    static const std::vector<Factor> all = {
        {.name = "down",
         .suffixes = {".lora_down.weight", ".lora_A.weight", ".lora_A.default.weight", ".lora_A", "_lora.down.weight",
                      ".lora.down.weight", ".lora_linear_layer.down.weight"}},
        {.name = "up",
         .suffixes = {".lora_up.weight", ".lora_B.weight", ".lora_B.default.weight", ".lora_B", "_lora.up.weight",
                      ".lora.up.weight", ".lora_linear_layer.up.weight"},
         .begins_at_zero = true},
        {.name = "middle", .suffixes = {".lora_mid.weight"}, .optional = true, .frozen_only = true},
        {.name = "bias", .suffixes = {".lora_B.bias", ".lora_up.bias"}, .optional = true, .frozen_only = true}};
    return all;
  }

  // down is Kaiming-uniform(a = sqrt 5), that is uniform in ±1/sqrt(fan_in); up is zero.
  std::vector<Tensor> fresh(const LoraTarget& t, const FreshOptions& options, Rng& rng, Memory& memory) const override {
    const int64_t rank = options.rank;
    const float bound = 1 / std::sqrt(float(t.in * t.kernel * t.kernel));
    const Shape down = t.kernel == 1 ? Shape{rank, t.in} : Shape{rank, t.kernel, t.kernel, t.in};
    return {affine(random_uniform(down, rng, memory), 2 * bound, -bound), zeros({t.out, rank}, DType::f32, memory)};
  }

  int64_t rank(const AdapterModule& module) const override { return module.factors[kUp].value.dim(1); }

  Tensor to_file(size_t factor, const Tensor& value, const AdapterModule& module,
                 const std::vector<int>& order) const override {
    const LoraTarget& t = module.target;
    const Tensor up = factor == kUp ? reordered(value, order) : Tensor();
    if (!t.conv) return up ? up : value;
    if (up) return reshape(up, {t.out, up.dim(1), 1, 1});
    return t.kernel == 1 ? reshape(value, {value.dim(0), t.in, 1, 1}) : permute(value, {0, 3, 1, 2});
  }

  void from_file(AdapterModule& module, const std::string& file) const override {
    const LoraTarget& t = module.target;
    Tensor &down = down_of(module), &up = up_of(module);
    const Tensor core = std::exchange(module.factors[kMid].value, {});
    const int64_t rank = up.rank() >= 2 ? up.dim(1) : 0, inner = core && core.rank() == 4 ? core.dim(1) : rank;
    const int64_t kernel = core ? 1 : t.kernel;
    const Shape matrix{inner, t.in}, convolution{inner, t.in, kernel, kernel};
    check(rank > 0 && (up.shape() == Shape{t.out, rank} || up.shape() == Shape{t.out, rank, 1, 1}),
          "{}: {} should have shape [{}, rank] for this model, found {}", file, quote(module.factors[kUp].key), t.out,
          up.shape());
    check(!core || core.shape() == Shape{rank, inner, t.kernel, t.kernel},
          "{}: {} should have shape [{}, rank, {}, {}] for this model, found {}", file, quote(module.factors[kMid].key),
          rank, t.kernel, t.kernel, core ? core.shape() : Shape{});
    check(down.shape() == convolution || (kernel == 1 && down.shape() == matrix),
          "{}: {} should have shape {} for this model, found {}", file, quote(module.factors[kDown].key),
          t.conv ? convolution : matrix, down.shape());
    down = kernel == 1 ? reshape(down, matrix) : contiguous(permute(down, {0, 2, 3, 1}));
    if (core) down = with_core(down, core);
    up = reordered(reshape(up, {t.out, rank}), inverse(module.order));
    Tensor& bias = module.factors[kBias].value;
    if (!bias) return;
    check(bias.shape() == Shape{t.out}, "{}: {} should have shape {} for this model, found {}", file,
          quote(module.factors[kBias].key), Shape{t.out}, bias.shape());
    bias = reordered(bias, inverse(module.order));
  }

  // |up down|^2 is the sum of the elements of (up^T up) * (down down^T).
  void limit_norm(const AdapterModule& module, float most) const override {
    const Tensor up = module.factors[kUp].value.detached();
    const Tensor down = reshape(module.factors[kDown].value.detached(), {up.dim(1), -1});
    const Tensor change = sum(matmul(transpose(up, 0, 1), up) * matmul(down, transpose(down, 0, 1)));
    const float unit = module.total_scale() / most;
    const Tensor excess = clamp(change * (unit * unit), 1, std::numeric_limits<float>::infinity());
    const Tensor root = rsqrt(excess), factor = root * rsqrt(root);  // 1 / sqrt(the norm's ratio to the most)
    for (const size_t i : {kDown, kUp}) {
      const Tensor& value = module.factors[i].value;
      value.backend().copy(value, value.detached() * factor);
    }
  }

  bool stacks() const override { return true; }

  // (x A1^T) B1^T + (x A2^T) B2^T is one LoRA of the summed rank.
  void add(AdapterModule& module, const AdapterModule& other) const override {
    Tensor &down = down_of(module), &up = up_of(module);
    down = cat({down, other.factors[kDown].value}, 0);
    up = cat({affine(up, module.total_scale(), 0), affine(other.factors[kUp].value, other.total_scale(), 0)}, 1);
    module.factors.resize(factors().size());
    Tensor& bias = module.factors[kBias].value;
    if (bias) bias = affine(bias, module.total_scale(), 0);
    if (other.factors.size() > kBias && other.factors[kBias].value) {
      const Tensor more = affine(other.factors[kBias].value, other.total_scale(), 0);
      bias = bias ? bias + more : more;
    }
    module.scale = module.strength = 1;
    module.alpha = float(up.dim(1));
  }

  void widen(AdapterModule& module, int64_t first, int64_t outputs) const override {
    Tensor& up = up_of(module);
    const int64_t rank = up.dim(1), before = module.first - first, behind = outputs - before - up.dim(0);
    const auto widened = [&](const Tensor& values, const auto& shape) {
      std::vector<Tensor> rows = {values};
      if (before > 0) rows.insert(rows.begin(), zeros(shape(before)));
      if (behind > 0) rows.push_back(zeros(shape(behind)));
      return cat(rows, 0);
    };
    up = widened(up, [&](int64_t count) { return Shape{count, rank}; });
    if (module.factors.size() > kBias && module.factors[kBias].value)
      module.factors[kBias].value = widened(module.factors[kBias].value, [](int64_t count) { return Shape{count}; });
    module.first = first;
    module.target.out = outputs;
  }

  std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t outputs,
                                            const Residence& place, const LoraDropout& dropout) const override {
    Lora lora = place.activations == DType::f32 ? joined(parts, *place.memory) : copied(parts, outputs, place);
    lora.dropout = dropout;
    return std::make_shared<LoraLayer>(std::move(lora), shift_of(parts, outputs, *place.memory));
  }
};

}  // namespace

Tensor reordered(const Tensor& rows, const std::vector<int>& order, int axis) {
  if (order.empty()) return rows;
  const int64_t size = rows.dim(axis) / int64_t(order.size());
  std::vector<Tensor> parts;
  for (const int part : order) parts.push_back(slice(rows, axis, part * size, (part + 1) * size));
  return cat(parts, axis);
}

std::vector<int> inverse(const std::vector<int>& order) {
  std::vector<int> all(order.size());
  for (size_t i = 0; i < order.size(); ++i) all[size_t(order[i])] = int(i);
  return all;
}

Tensor with_core(const Tensor& down, const Tensor& core) {
  const Tensor pixels = permute(core, {0, 2, 3, 1});  // [R, KH, KW, R']
  return reshape(matmul(reshape(contiguous(pixels), {-1, core.dim(1)}), down),
                 {core.dim(0), core.dim(2), core.dim(3), down.dim(1)});
}

const AdapterAlgorithm& lora_algorithm() {
  static const LoraAlgorithm lora;
  return lora;
}

}  // namespace wick
