// LoKr (Edalati et al., 2022, "KronA", as LyCORIS has it) as an algorithm of adapters: the module's change is
// scale * kron(W1, W2), with W1 [L, M] and W2 [K, N] for a weight [L K, M N]; of a convolution W2 [K, KH, KW, N] has
// the pixels. Either may be a product of two of rank R.
//
// The change is never made: W1 mixes the M parts of x [..., M N], and each of the L that come of it goes through W2; or
// each goes through W2 first.
#include <algorithm>
#include <cmath>
#include <utility>

#include "wick/autograd/checkpoint.h"
#include "wick/backend/views.h"
#include "wick/io/quote.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/matmul.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

enum : size_t { kW1, kA1, kB1, kW2, kA2, kB2, kT2 };

// A number as a product of two, the smaller first: the larger divisor is `most` where that divides, else the smaller is
// at most `most`, and as near to the root as it may be; -1: any.
std::pair<int64_t, int64_t> divided(int64_t number, int64_t most) {
  if (most > 0 && number % most == 0) return std::minmax({most, number / most});
  int64_t smaller = 1;
  for (int64_t d = 1; d * d <= number && (most < 0 || d <= most); ++d)
    if (number % d == 0) smaller = d;
  return {smaller, number / smaller};
}

struct Sides {
  int64_t l, k, m, n;
};

const Tensor& value_of(const AdapterModule& module, size_t factor) { return module.factors[factor].value; }

Sides sides_of(const AdapterModule& module) {
  const Tensor &w1 = value_of(module, kW1), &w2 = value_of(module, kW2);
  return {w1 ? w1.dim(0) : value_of(module, kA1).dim(0), w2 ? w2.dim(0) : value_of(module, kA2).dim(0),
          w1 ? w1.dim(1) : value_of(module, kB1).dim(1), w2 ? w2.dim(-1) : value_of(module, kB2).dim(-1)};
}

Tensor first_matrix(const AdapterModule& module) {
  const Tensor& whole = value_of(module, kW1);
  return whole ? whole : matmul(value_of(module, kA1), value_of(module, kB1));
}

// W2 as [K, KH * KW, N].
Tensor second_matrix(const AdapterModule& module) {
  const auto [l, k, m, n] = sides_of(module);
  const Tensor& whole = value_of(module, kW2);
  if (whole) return reshape(whole, {k, -1, n});
  const Tensor& right = value_of(module, kB2);
  return reshape(matmul(value_of(module, kA2), reshape(right, {right.dim(0), -1})), {k, -1, n});
}

// An order of outputs that parts of W1's rows make: else the outputs themselves are brought into it.
bool rows_follow(const AdapterModule& module) {
  return module.order.empty() || sides_of(module).l % int64_t(module.order.size()) == 0;
}

Tensor in_order(const Tensor& outputs, int axis, const AdapterModule& module) {
  return rows_follow(module) ? outputs : reordered(outputs, inverse(module.order), axis);
}

class LokrLayer final : public LayerAdapter {
 public:
  LokrLayer(const AdapterModule& module, DType activations) : module_(module), activations_(activations) {}

  // Its own part is computed again in backward.
  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool ends_block) const override {
    const auto run = [this, conv = below.conv()](const Tensor& input) { return change_of(input, conv); };
    const Tensor share = module_.is_trained() ? checkpoint(run, x) : run(x);
    return below(x, bias, residual ? share + residual : share, ends_block);
  }

  Tensor merged(const Tensor& w) const override {
    const auto [l, k, m, n] = sides_of(module_);
    const Tensor first = first_matrix(module_).detached(), second = second_matrix(module_).detached();
    const int64_t pixels = second.dim(1);
    const Tensor change =
        reshape(first, {l, 1, 1, m, 1}) * reshape(second, {1, k, pixels, 1, n}) * module_.total_scale();
    return cast(w, DType::f32) + in_order(reshape(change, w.shape()), 0, module_).to(w.memory());
  }

 private:
  // W1 mixes the parts of x or those of what W2 makes of them, whichever is less work. Both leave outputs in the file's
  // order.
  Tensor change_of(const Tensor& x, const Conv2d* conv) const {
    const auto [l, k, m, n] = sides_of(module_);
    const Tensor mix = cast(first_matrix(module_) * module_.total_scale(), activations_);
    const bool mixes_first = l * n * (m + k) <= m * k * (n + l);
    Tensor y = mixes_first ? mixed(mix, x) : x;
    y = conv && module_.target.kernel > 1 ? convolved(y, *conv) : multiplied(y);
    if (!mixes_first) y = mixed(mix, y);
    return in_order(y, y.rank() - 1, module_);
  }

  // x [..., P Q] in P parts -> [..., P' Q], for mix [P', P].
  static Tensor mixed(const Tensor& mix, const Tensor& x) {
    const Tensor parts = reshape(x, {-1, mix.dim(1), x.dim(-1) / mix.dim(1)});
    return reshape(matmul(mix, parts), with_last(x.shape(), mix.dim(0) * parts.dim(2)));
  }

  Tensor factor(size_t which) const { return cast(value_of(module_, which), activations_); }

  // x [..., P N] -> [..., P K]
  Tensor multiplied(const Tensor& x) const {
    const auto [l, k, m, n] = sides_of(module_);
    const Tensor rows = reshape(x, {-1, n});
    const auto matrix = [&](size_t which) { return reshape(factor(which), {value_of(module_, which).dim(0), -1}); };
    const Tensor y =
        value_of(module_, kW2) ? linear(rows, matrix(kW2)) : linear(linear(rows, matrix(kB2)), matrix(kA2));
    return reshape(y, with_last(x.shape(), x.dim(-1) / n * k));
  }

  // x [B, H, W, P N] -> [B, H', W', P K]: each part is a picture of its own.
  Tensor convolved(const Tensor& x, const Conv2d& conv) const {
    const auto [l, k, m, n] = sides_of(module_);
    const int64_t batch = x.dim(0), height = x.dim(1), width = x.dim(2), parts = x.dim(3) / n;
    const Tensor apart = permute(reshape(x, {batch, height, width, parts, n}), {0, 3, 1, 2, 4});
    const Tensor pictures = reshape(apart, {batch * parts, height, width, n});
    const Tensor y = value_of(module_, kW2) ? conv2d(pictures, factor(kW2), {}, conv)
                                            : linear(conv2d(pictures, factor(kB2), {}, conv), factor(kA2));
    const Tensor together = permute(reshape(y, {batch, parts, y.dim(1), y.dim(2), k}), {0, 2, 3, 1, 4});
    return reshape(contiguous(together), {batch, y.dim(1), y.dim(2), parts * k});
  }

  const AdapterModule& module_;
  DType activations_;
};

// uniform in ±1/sqrt(fan_in), which is Kaiming's with a = sqrt 5.
Tensor uniform(const Shape& shape, Rng& rng, Memory& memory) {
  const float bound = 1 / std::sqrt(float(std::max<int64_t>(shape.numel() / shape[0], 1)));
  return affine(random_uniform(shape, rng, memory), 2 * bound, -bound);
}

class LokrAlgorithm final : public AdapterAlgorithm {
 public:
  const char* name() const override { return "LoKr"; }

  const std::vector<Factor>& factors() const override {
    static const std::vector<Factor> all = {
        {.name = "W1", .suffixes = {".lokr_w1"}, .optional = true},
        {.name = "A1", .suffixes = {".lokr_w1_a"}, .optional = true},
        {.name = "B1", .suffixes = {".lokr_w1_b"}, .optional = true},
        {.name = "W2", .suffixes = {".lokr_w2"}, .optional = true, .begins_at_zero = true},
        {.name = "A2", .suffixes = {".lokr_w2_a"}, .optional = true},
        {.name = "B2", .suffixes = {".lokr_w2_b"}, .optional = true, .begins_at_zero = true},
        {.name = "core of W2", .suffixes = {".lokr_t2"}, .optional = true, .frozen_only = true}};
    return all;
  }

  // As LyCORIS begins them, which keeps W2 whole where its sides are less than twice the rank.
  std::vector<Tensor> fresh(const LoraTarget& t, const FreshOptions& options, Rng& rng, Memory& memory) const override {
    auto [l, k] = divided(t.out, options.kron.factor);
    const auto [m, n] = divided(t.in, options.kron.factor);
    if (options.kron.unbalanced) std::swap(l, k);
    std::vector<Tensor> all(factors().size());
    if (options.kron.decompose_both && !options.kron.full_second && 2 * options.rank < std::max(l, m)) {
      all[kA1] = uniform({l, options.rank}, rng, memory);
      all[kB1] = uniform({options.rank, m}, rng, memory);
    } else {
      all[kW1] = uniform({l, m}, rng, memory);
    }
    const auto with_pixels = [&t, n = n](int64_t rows) {
      return t.kernel == 1 ? Shape{rows, n} : Shape{rows, t.kernel, t.kernel, n};
    };
    if (options.kron.full_second || 2 * options.rank >= std::max(k, n)) {
      all[kW2] = zeros(with_pixels(k), DType::f32, memory);
    } else {
      all[kA2] = uniform({k, options.rank}, rng, memory);
      all[kB2] = zeros(with_pixels(options.rank), DType::f32, memory);
    }
    return all;
  }

  int64_t rank(const AdapterModule& module) const override {
    for (const size_t factor : {kB2, kB1})
      if (value_of(module, factor)) return value_of(module, factor).dim(0);
    return 0;
  }

  bool keeps_order(const AdapterModule& module) const override { return rows_follow(module); }

  Tensor to_file(size_t factor, const Tensor& value, const AdapterModule& module,
                 const std::vector<int>& order) const override {
    if (factor == kW1 || factor == kA1) return reordered(value, order);
    if (factor == kW2 && module.target.conv)
      return value.rank() == 4 ? permute(value, {0, 3, 1, 2}) : reshape(value, {value.dim(0), value.dim(1), 1, 1});
    if (factor == kB2 && value.rank() == 4) return reshape(permute(value, {0, 3, 1, 2}), {value.dim(0), -1});
    return value;
  }

  void from_file(AdapterModule& module, const std::string& file) const override {
    check_pair(module, kW1, kA1, kB1, file);
    check_pair(module, kW2, kA2, kB2, file);
    for (const size_t factor : {kW1, kA1, kB1, kA2})
      check(!value_of(module, factor) || value_of(module, factor).rank() == 2,
            "{}: {} should be a matrix, found shape {}", file, quote(module.factors[factor].key),
            value_of(module, factor) ? value_of(module, factor).shape() : Shape{});
    read_second(module, file);
    const LoraTarget& t = module.target;
    const auto [l, k, m, n] = sides_of(module);
    check(l * k == t.out && m * n == t.in, "{}: {} has factors for a weight of {} x {}, and this model's is {} x {}",
          file, quote(module.name), l * k, m * n, t.out, t.in);
    Tensor& rows = module.factors[value_of(module, kW1) ? kW1 : kA1].value;
    if (rows_follow(module)) rows = reordered(rows, inverse(module.order));
  }

  std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t, const Residence& place,
                                            const LoraDropout&) const override {
    AdapterModule& module = *parts.front().module;
    for (AdapterFactor& factor : module.factors)
      if (factor.value) factor.place(*place.memory);
    return std::make_shared<LokrLayer>(module, place.activations);
  }

 private:
  // A matrix is there, or both of its factors.
  static void check_pair(const AdapterModule& module, size_t whole, size_t a, size_t b, const std::string& file) {
    const bool has_whole = bool(value_of(module, whole)), has_a = bool(value_of(module, a)),
               has_b = bool(value_of(module, b));
    check(has_whole != (has_a && has_b) && has_a == has_b, "{}: {} should have {}, or {} and {}", file,
          quote(module.name), lokr_algorithm().factors()[whole].suffixes.front(),
          lokr_algorithm().factors()[a].suffixes.front(), lokr_algorithm().factors()[b].suffixes.front());
    check(!has_a || (value_of(module, a).rank() == 2 && value_of(module, b).rank() == 2), "{}: {} should be a matrix",
          file, quote(module.factors[a].key));
  }

  static void read_second(AdapterModule& module, const std::string& file) {
    Tensor &whole = module.factors[kW2].value, &left = module.factors[kA2].value, &right = module.factors[kB2].value,
           &core = module.factors[kT2].value;
    const int64_t kernel = module.target.kernel, pixels = kernel * kernel;
    const auto check_shape = [&](size_t factor, bool fits) {
      check(fits, "{}: {} does not fit a kernel of {} x {} and the factor beside it: found shape {}", file,
            quote(module.factors[factor].key), kernel, kernel, value_of(module, factor).shape());
    };
    if (whole) {
      check_shape(kW2, (whole.rank() == 2 && kernel == 1) ||
                           (whole.rank() == 4 && whole.dim(2) == kernel && whole.dim(3) == kernel));
      whole = kernel == 1 ? reshape(whole, {whole.dim(0), whole.dim(1)}) : contiguous(permute(whole, {0, 2, 3, 1}));
    } else if (core) {
      check_shape(kA2, left.dim(0) == right.dim(0));
      check_shape(kT2, core.shape() == Shape{left.dim(0), right.dim(0), kernel, kernel});
      left = contiguous(transpose(left, 0, 1));
      right = with_core(right, std::exchange(core, {}));
    } else {
      check_shape(kB2, right.dim(1) % pixels == 0 && left.dim(1) == right.dim(0));
      if (kernel > 1) right = contiguous(permute(reshape(right, {right.dim(0), -1, kernel, kernel}), {0, 2, 3, 1}));
    }
  }
};

}  // namespace

const AdapterAlgorithm& lokr_algorithm() {
  static const LokrAlgorithm lokr;
  return lokr;
}

}  // namespace wick
