// LoHa (Hyeon-Woo et al., 2022, "FedPara") as an algorithm of adapters, as LyCORIS has it: the module's change is
// scale * (A1 B1) * (A2 B2), by elements; A [out, R], B [R, in], or [R, KH, KW, in] of a convolution.
//
// The elementwise product of two matrices of rank R is a matrix of rank R^2, whose factors are the Khatri-Rao products
// of theirs: so it is a LoRA. Where R^2 is too large for that to be less work than the dense matrix, that is made.
#include <algorithm>

#include "wick/autograd/checkpoint.h"
#include "wick/io/quote.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/matmul.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

enum : size_t { kA1, kB1, kA2, kB2, kT1, kT2 };

const Tensor& factor_of(const AdapterModule& module, size_t factor) { return module.factors[factor].value; }

int64_t pixels_of(const LoraTarget& t) { return int64_t(t.kernel) * t.kernel; }

// Is it less work as a LoRA of rank R^2?
bool is_low(const LoraTarget& t, int64_t rank) {
  const int64_t inputs = t.in * pixels_of(t);
  return rank * rank * (inputs + t.out) <= inputs * t.out;
}

Shape weight_shape(const LoraTarget& t) {
  return t.kernel == 1 ? Shape{t.out, t.in} : Shape{t.out, t.kernel, t.kernel, t.in};
}

// The LoRA that a module is.
struct Expanded {
  Tensor down, up;  // [R^2, in] or [R^2, KH, KW, in], and [out, R^2]

  explicit Expanded(const AdapterModule& m) {
    const Tensor &a1 = factor_of(m, kA1), &a2 = factor_of(m, kA2);
    const int64_t out = a1.dim(0), rank = a1.dim(1), inputs = factor_of(m, kB1).numel() / rank;
    up = reshape(reshape(a1, {out, rank, 1}) * reshape(a2, {out, 1, rank}), {out, rank * rank});
    down = reshape(factor_of(m, kB1), {rank, 1, inputs}) * reshape(factor_of(m, kB2), {1, rank, inputs});
    Shape shape = weight_shape(m.target);
    shape[0] = rank * rank;
    down = reshape(down, shape);
  }
};

// Its change, in the layout of the weight.
Tensor dense(const AdapterModule& m) {
  const auto product = [&](size_t a, size_t b) {
    return matmul(factor_of(m, a), reshape(factor_of(m, b), {factor_of(m, b).dim(0), -1}));
  };
  return reshape(product(kA1, kB1) * product(kA2, kB2) * m.total_scale(), weight_shape(m.target));
}

// A trained module. What its factors expand to is made again in backward.
class LohaLayer final : public LayerAdapter {
 public:
  LohaLayer(const AdapterModule& module, DType activations) : module_(module), activations_(activations) {}

  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool) const override {
    const auto run = [this, below, bias](const Tensor& input, const Tensor& added) {
      return is_low(module_.target, factor_of(module_, kA1).dim(1)) ? as_lora(below, input, bias, added)
                                                                    : as_dense(below, input, bias, added);
    };
    return checkpoint(run, x, residual);
  }
  Tensor merged(const Tensor& w) const override {
    return cast(w, DType::f32) + reshape(dense(module_).detached().to(w.memory()), w.shape());
  }

 private:
  Tensor as_lora(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual) const {
    const Expanded e(module_);
    const Lora lora = Lora::of(e.down, e.up, module_.total_scale(), activations_);
    return lora_on(below, x, bias, lora, residual, /*ends_block=*/true);
  }
  Tensor as_dense(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual) const {
    const Tensor change = cast(dense(module_), activations_);
    const Conv2d* const conv = below.conv();
    const Tensor share = conv ? conv2d(x, change, {}, *conv, residual) : linear(x, change, {}, residual);
    return below(x, bias, share, /*ends_block=*/true);
  }

  const AdapterModule& module_;
  DType activations_;
};

class LohaAlgorithm final : public AdapterAlgorithm {
 public:
  const char* name() const override { return "LoHa"; }

  const std::vector<Factor>& factors() const override {
    static const std::vector<Factor> all = {
        {.name = "A1", .suffixes = {".hada_w1_a"}},
        {.name = "B1", .suffixes = {".hada_w1_b"}},
        {.name = "A2", .suffixes = {".hada_w2_a"}, .begins_at_zero = true},
        {.name = "B2", .suffixes = {".hada_w2_b"}},
        {.name = "core of B1", .suffixes = {".hada_t1"}, .optional = true, .frozen_only = true},
        {.name = "core of B2", .suffixes = {".hada_t2"}, .optional = true, .frozen_only = true}};
    return all;
  }

  // As LyCORIS begins them: normal with deviations 0.1 and 1, but A2 is zero.
  std::vector<Tensor> fresh(const LoraTarget& t, const FreshOptions& options, Rng& rng, Memory& memory) const override {
    const int64_t rank = options.rank;
    Shape b = weight_shape(t);
    b[0] = rank;
    const Tensor a1 = random_normal({t.out, rank}, rng, memory) * 0.1f, b1 = random_normal(b, rng, memory);
    return {a1, b1, zeros({t.out, rank}, DType::f32, memory), random_normal(b, rng, memory)};
  }

  int64_t rank(const AdapterModule& module) const override { return factor_of(module, kA1).dim(1); }

  Tensor to_file(size_t factor, const Tensor& value, const AdapterModule&,
                 const std::vector<int>& order) const override {
    if (factor == kA1 || factor == kA2) return reordered(value, order);
    return value.rank() == 4 ? reshape(permute(value, {0, 3, 1, 2}), {value.dim(0), -1}) : value;
  }

  void from_file(AdapterModule& module, const std::string& file) const override {
    for (const size_t factor : {kA1, kB1, kA2, kB2})  // OneTrainer's of a convolution are convolutions
      if (Tensor& value = module.factors[factor].value; value.rank() == 4) value = reshape(value, {value.dim(0), -1});
    const bool first = bool(factor_of(module, kT1)), second = bool(factor_of(module, kT2));
    check(first == second, "{}: {} has one of two cores", file, quote(module.name));
    const int64_t rank = factor_of(module, kB1).rank() == 2 ? factor_of(module, kB1).dim(0) : 0;
    for (const auto& [a, b, core] : {std::array<size_t, 3>{kA1, kB1, kT1}, std::array<size_t, 3>{kA2, kB2, kT2}})
      read_pair(module, a, b, core, rank, file);
  }

  std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t outputs,
                                            const Residence& place, const LoraDropout& dropout) const override {
    AdapterModule& module = *parts.front().module;
    for (AdapterFactor& factor : module.factors)
      if (factor.value) factor.place(*place.memory);
    if (module.is_trained()) return std::make_shared<LohaLayer>(module, place.activations);
    if (!is_low(module.target, rank(module))) return dense_change(cast(dense(module), place.activations));
    const Expanded e(module);
    AdapterModule lora{module.name, module.target, &lora_algorithm(), {{"", e.down}, {"", e.up}}};
    lora.scale = module.total_scale();
    return lora_algorithm().layer({{&lora, 0}}, outputs, place, dropout);
  }

 private:
  static void read_pair(AdapterModule& module, size_t a, size_t b, size_t core, int64_t rank, const std::string& file) {
    const LoraTarget& t = module.target;
    Tensor &left = module.factors[a].value, &right = module.factors[b].value, &middle = module.factors[core].value;
    const int64_t kernel = t.kernel;
    const auto check_shape = [&](size_t factor, const Shape& wanted) {
      check(factor_of(module, factor).shape() == wanted, "{}: {} should have shape {} for this model, found {}", file,
            quote(module.factors[factor].key), wanted, factor_of(module, factor).shape());
    };
    check(rank > 0, "{}: {} should be a matrix, found shape {}", file, quote(module.factors[kB1].key),
          factor_of(module, kB1).shape());
    if (middle) check_shape(core, {rank, rank, kernel, kernel});
    check_shape(a, middle ? Shape{rank, t.out} : Shape{t.out, rank});
    check_shape(b, {rank, middle ? t.in : t.in * kernel * kernel});
    if (middle) {
      left = contiguous(transpose(left, 0, 1));
      right = with_core(right, std::exchange(middle, {}));
    } else if (kernel > 1) {
      right = contiguous(permute(reshape(right, {rank, t.in, kernel, kernel}), {0, 2, 3, 1}));
    }
    left = reordered(left, inverse(module.order));
  }
};

}  // namespace

const AdapterAlgorithm& loha_algorithm() {
  static const LohaAlgorithm loha;
  return loha;
}

}  // namespace wick
