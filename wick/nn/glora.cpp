// GLoRA (Chavan et al., 2023) as an algorithm of adapters, as LyCORIS has it: the module's weight becomes
// W + scale (B + W A), where A = A1 A2 mixes input channels and B = B1 B2; A1 [in, R], A2 [R, in], B1 [out, R], B2 [R,
// in] or [R, KH, KW, in]. LyCORIS before 3 had the factors of each pair the other way round.
//
// W A is made of x: it goes through A before the layer below.
#include <utility>

#include "wick/io/quote.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/matmul.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

enum : size_t { kA1, kA2, kB1, kB2 };

class GloraLayer final : public LayerAdapter {
 public:
  // A1 and B1 times the scale, all in the dtype of activations.
  GloraLayer(Tensor a1, Tensor a2, Tensor b1, Tensor b2)
      : a1_(std::move(a1)), a2_(std::move(a2)), b1_(std::move(b1)), b2_(std::move(b2)) {}

  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool ends_block) const override {
    const Tensor mixed = linear(linear(x, a2_), a1_, {}, x);
    const Tensor low = below.conv() ? conv2d(x, b2_, {}, *below.conv()) : linear(x, b2_);
    return below(mixed, bias, linear(low, b1_, {}, residual), ends_block);
  }

  Tensor merged(const Tensor& w) const override {
    const auto wide = [&](const Tensor& factor) { return cast(factor.to(w.memory()), DType::f32); };
    const Tensor base = cast(w, DType::f32), channels = reshape(base, {-1, w.dim(-1)}), b2 = wide(b2_);
    const Tensor share = matmul(matmul(channels, wide(a1_)), wide(a2_)),
                 own = matmul(wide(b1_), reshape(b2, {b2.dim(0), -1}));
    return base + reshape(share, w.shape()) + reshape(own, w.shape());
  }
  bool needs_weight() const override { return true; }

 private:
  Tensor a1_, a2_, b1_, b2_;
};

class GloraAlgorithm final : public AppliedAlgorithm {
 public:
  const char* name() const override { return "GLoRA"; }

  const std::vector<Factor>& factors() const override {
    static const std::vector<Factor> all = {{.name = "A1", .suffixes = {".a1.weight"}, .frozen_only = true},
                                            {.name = "A2", .suffixes = {".a2.weight"}, .frozen_only = true},
                                            {.name = "B1", .suffixes = {".b1.weight"}, .frozen_only = true},
                                            {.name = "B2", .suffixes = {".b2.weight"}, .frozen_only = true}};
    return all;
  }

  int64_t rank(const AdapterModule& module) const override { return module.factors[kB2].value.dim(0); }

  void from_file(AdapterModule& module, const std::string& file) const override {
    std::vector<AdapterFactor>& factors = module.factors;
    const LoraTarget& t = module.target;
    for (const AdapterFactor& factor : factors)
      check(factor.value.rank() == 2 || factor.value.rank() == 4, "{}: {} should be a matrix, found shape {}", file,
            quote(factor.key), factor.value.shape());
    if (!fits(module)) {
      std::swap(factors[kA1], factors[kA2]);
      std::swap(factors[kB1], factors[kB2]);
    }
    const int64_t a = factors[kA1].value.dim(1), b = factors[kB1].value.dim(1);
    check(fits(module) && factors[kA2].value.dim(0) == a && factors[kB2].value.dim(0) == b,
          "{}: {} has factors that do not fit a layer of {} to {}, a kernel of {} and each other", file,
          quote(module.name), t.in, t.out, t.kernel);
    for (const size_t factor : {kA1, kA2, kB1})
      factors[factor].value = reshape(factors[factor].value, {factors[factor].value.dim(0), -1});
    Tensor& b2 = factors[kB2].value;
    b2 = t.kernel > 1 ? contiguous(permute(b2, {0, 2, 3, 1})) : reshape(b2, {b, t.in});
    factors[kB1].value = reordered(factors[kB1].value, inverse(module.order));
  }

  std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t, const Residence& place,
                                            const LoraDropout&) const override {
    AdapterModule& module = *parts.front().module;
    const auto placed = [&](size_t factor, float scale) {
      const Tensor& value = module.factors[factor].value;
      return cast((value * scale).to(*place.memory), place.activations);
    };
    const float s = module.total_scale();
    return std::make_shared<GloraLayer>(placed(kA1, s), placed(kA2, 1), placed(kB1, s), placed(kB2, 1));
  }

 private:
  static bool fits(const AdapterModule& module) {
    const LoraTarget& t = module.target;
    const auto is = [&](size_t factor, int64_t rows, int64_t columns, int64_t kernel) {
      const Tensor& value = module.factors[factor].value;
      const int64_t r = rows < 0 ? value.dim(0) : rows, c = columns < 0 ? value.dim(1) : columns;
      return value.shape() == Shape{r, c, kernel, kernel} || (kernel == 1 && value.shape() == Shape{r, c});
    };
    return is(kA1, t.in, -1, 1) && is(kA2, -1, t.in, 1) && is(kB1, t.out, -1, 1) && is(kB2, -1, t.in, t.kernel);
  }
};

}  // namespace

const AdapterAlgorithm& glora_algorithm() {
  static const GloraAlgorithm glora;
  return glora;
}

}  // namespace wick
