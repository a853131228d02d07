// OFT (Qiu et al., 2023) and BOFT (Liu et al., 2024) of inputs as algorithms of adapters, as PEFT has them: x is
// rotated in blocks before the layer.
//   OFT    x_k becomes x_k R_k, where R is Cayley's transform of the skew-symmetric S whose rows above the diagonal are
//          `oft_R`, PEFT's (I - S) (I + S)^-1, or its Neumann series, which approximates the transpose of that
//          (peft/tuners/oft/layer.py). One block may serve for all, and S be bounded (coft).
//   BOFT   x becomes x M_(m-1) … M_0 with M_i = P_i diag(R_i) P_i^T and R = (I - S) (I + S)^-1 of S = (B - B^T) / 2 of
//          `boft_R` [m, K, N, N], where P_i brings channels 2^i N / 2 apart together; outputs are multiplied by
//          `boft_s`, biases are not (peft/tuners/boft/layer.py).
// OneTrainer has PEFT's OFT without its settings: five terms, and a shared block where there is one that is narrower
// than the inputs. Of convolutions it multiplies the weight's columns by R itself, and not by R^T as x R does for
// linears (modules/module/oft_utils.py). PEFT's own results with convolutions depend on whether they are merged.
//
// With a strength m it is I + m (R - I) and 1 + m (s - 1).
#include <algorithm>
#include <cmath>
#include <utility>

#include "wick/io/quote.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/nn/rotation.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/matmul.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

// R - I, in the dtype of activations.
Tensor placed(const Tensor& change, float strength, const Residence& place) {
  return cast((change * strength).to(*place.memory), place.activations);
}

// A weight's rows [O, I], or of a wider convolution [O, KH, KW, I], as f32 [O, I KH KW], and the way back.
Tensor rows_of_weight(const Tensor& w) {
  const Tensor wide = cast(w, DType::f32);
  return w.rank() == 4 ? reshape(contiguous(permute(wide, {0, 3, 1, 2})), {w.dim(0), -1}) : wide;
}
Tensor weight_of_rows(const Tensor& rows, const Shape& shape) {
  if (shape.rank() != 4) return reshape(rows, shape);
  return contiguous(permute(reshape(rows, {shape[0], shape[3], shape[1], shape[2]}), {0, 2, 3, 1}));
}

class InputRotation final : public LayerAdapter {
 public:
  // change [K, N, N] by which x is multiplied from the right; the weight's columns where that is of a wider
  // convolution.
  explicit InputRotation(Tensor change) : change_(std::move(change)) {}

  // A wide convolution's weight is made anew at each call, which costs much less than the convolution.
  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool ends_block) const override {
    if (const Conv2d* const conv = below.conv())
      return conv2d(x, cast(merged(below.weight()), x.dtype()), bias, *conv, residual);
    return below(rotated(x, change_), bias, residual, ends_block);
  }
  Tensor merged(const Tensor& w) const override {
    const Tensor change = cast(change_.to(w.memory()), DType::f32);
    const Tensor of_weight = w.rank() == 4 ? change : contiguous(transpose(change, 1, 2));
    return weight_of_rows(rotated(rows_of_weight(w), of_weight), w.shape());
  }
  bool needs_weight() const override { return true; }

 private:
  Tensor change_;
};

class PeftOft final : public AppliedAlgorithm {
 public:
  enum : size_t { kEntries, kScaled };

  const char* name() const override { return "OFT"; }

  const std::vector<Factor>& factors() const override {
    static const std::vector<Factor> all = {
        {.name = "entries", .suffixes = {".oft_R.weight", ".oft_R.default.weight"}, .frozen_only = true},
        {.name = "mark", .suffixes = {".oft_R.scaled_oft"}, .optional = true, .frozen_only = true}};
    return all;
  }

  // The entries become R - I of each block, as x is multiplied by it.
  void from_file(AdapterModule& module, const std::string& file) const override {
    AdapterFactor& factor = module.factors[kEntries];
    const RotationSettings& r = module.rotation;
    const LoraTarget& t = module.target;
    check(t.kernel == 1 || r.is_onetrainers,
          "{}: {} is an OFT of a convolution, for which PEFT computes one thing and "
          "merges another",
          file, quote(factor.key));
    const int64_t inputs = t.in * t.kernel * t.kernel;
    const int64_t n = factor.value.rank() == 2 ? side_of_entries(factor.value.dim(1)).value_or(0) : 0,
                  blocks = n > 0 ? factor.value.dim(0) : 0;
    const bool shared = blocks == 1 && (r.shares_blocks || r.is_onetrainers);
    check(n > 0 && (blocks * n == inputs || (shared && inputs % n == 0)),
          "{}: {} should hold the entries of skew-symmetric blocks for {} inputs of this model, found shape {}", file,
          quote(factor.key), inputs, factor.value.shape());
    Tensor skew = skew_of_entries(factor.value);
    if (const Tensor& mark = module.factors[kScaled].value; mark && mark.item() != 0)
      skew = skew * float(1 / (2 * std::sqrt(double(n - 1))));
    if (r.coft_bound) skew = bounded_norms(skew, *r.coft_bound / std::sqrt(double(blocks)));
    factor.value = r.neumann_terms ? cayley_neumann(skew, *r.neumann_terms) : cayley(-1 * skew);
    if (r.is_onetrainers && t.conv && t.kernel == 1) factor.value = contiguous(transpose(factor.value, 1, 2));
  }

  std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t, const Residence& place,
                                            const LoraDropout&) const override {
    const AdapterModule& module = *parts.front().module;
    return std::make_shared<InputRotation>(placed(module.factors[kEntries].value, module.total_scale(), place));
  }
};

class InputButterfly final : public LayerAdapter {
 public:
  // changes [m, K, N, N] in the dtype of activations, the gain of outputs f32 [out]
  InputButterfly(Tensor changes, Tensor gain) : changes_(std::move(changes)), gain_(std::move(gain)) {}

  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool) const override {
    return finished(scaled_channels(below(turned(x, changes_, false), {}), gain_), bias, residual);
  }
  // W M^T, row by row.
  Tensor merged(const Tensor& w) const override {
    const Tensor rows = turned(cast(w, DType::f32), cast(changes_.to(w.memory()), DType::f32), /*transposed=*/true);
    return rows * reshape(gain_.to(w.memory()), {w.dim(0), 1});
  }
  bool needs_weight() const override { return true; }

 private:
  // x M, or x M^T.
  static Tensor turned(Tensor x, const Tensor& changes, bool transposed) {
    const int64_t count = changes.dim(0), blocks = changes.dim(1), n = changes.dim(2);
    for (int64_t step = 0; step < count; ++step) {
      const int64_t i = transposed ? step : count - 1 - step, apart = int64_t{1} << i;  // chunks of N / 2
      Tensor change = reshape(slice(changes, 0, i, i + 1), {blocks, n, n});
      if (transposed) change = contiguous(transpose(change, 1, 2));
      x = chunked(rotated(chunked(x, 2, apart, n / 2), change), apart, 2, n / 2);
    }
    return x;
  }
  // Channels [..., G, a, b, c] in the order [..., G, b, a, c].
  static Tensor chunked(const Tensor& x, int64_t a, int64_t b, int64_t c) {
    return a == 1 || b == 1 ? x : reshape(contiguous(transpose(reshape(x, {-1, a, b, c}), 1, 2)), x.shape());
  }

  Tensor changes_, gain_;
};

class PeftBoft final : public AppliedAlgorithm {
 public:
  enum : size_t { kBlocks, kGain };

  const char* name() const override { return "BOFT"; }

  const std::vector<Factor>& factors() const override {
    static const std::vector<Factor> all = {{.name = "blocks", .suffixes = {".boft_R"}, .frozen_only = true},
                                            {.name = "gain", .suffixes = {".boft_s"}, .frozen_only = true}};
    return all;
  }

  void from_file(AdapterModule& module, const std::string& file) const override {
    AdapterFactor& blocks = module.factors[kBlocks];
    const LoraTarget& t = module.target;
    check(t.kernel == 1, "{}: {} is a BOFT of a convolution, which Wick does not read", file, quote(blocks.key));
    constexpr int64_t kMost = 60;  // 2^60 is more than any layer has
    const Shape& shape = blocks.value.shape();
    const int64_t count = shape.rank() == 4 ? shape[0] : 0, n = shape.rank() == 4 ? shape[3] : 0;
    check(count > 0 && count <= kMost && shape[2] == n && shape[1] * n == t.in &&
              (count == 1 || (n % 2 == 0 && t.in % (n << (count - 1)) == 0)),
          "{}: {} should hold square blocks for {} inputs of this model, found shape {}", file, quote(blocks.key), t.in,
          shape);
    blocks.value = cayley(skew_part(blocks.value) * -0.5f);
    AdapterFactor& gain = module.factors[kGain];
    check_shape(gain, {t.out, 1}, file);
    gain.value = reordered(reshape(gain.value, {t.out}), inverse(module.order));
  }

  std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t, const Residence& place,
                                            const LoraDropout&) const override {
    const AdapterModule& module = *parts.front().module;
    const float m = module.total_scale();
    return std::make_shared<InputButterfly>(placed(module.factors[kBlocks].value, m, place),
                                            affine(module.factors[kGain].value, m, 1 - m).to(*place.memory));
  }
};

}  // namespace

const AdapterAlgorithm& peft_oft_algorithm() {
  static const PeftOft oft;
  return oft;
}

const AdapterAlgorithm& peft_boft_algorithm() {
  static const PeftBoft boft;
  return boft;
}

}  // namespace wick
