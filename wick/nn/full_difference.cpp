// Full differences and weights as algorithms of adapters: W + diff and b + diff_b (LyCORIS' full, and ComfyUI's
// extraction), or a weight in place of W (ComfyUI's set_weight, PEFT's modules_to_save), of which a strength m makes
// (1 - m) W + m weight; and so a bias in place of b (PEFT's). W may be an embedding's table. And LyCORIS' of norms,
// w + w_norm and b + b_norm, which layers find by Adapter::match_vector().
#include <utility>

#include "wick/io/quote.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/embedding.h"
#include "wick/ops/matmul.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

constexpr size_t kWeight = kWholeWeight, kBias = kWholeBias;

class FullLayer final : public LayerAdapter {
 public:
  // The change, in the dtype of activations, and the bias's, f32 [out], times the strength; either may be empty. It is
  // a weight's or a bias's own share where it replaces one.
  struct Change {
    Tensor value;
    bool replaces;
  };
  FullLayer(Change change, Change shift, float strength)
      : change_(std::move(change.value)),
        shift_(std::move(shift.value)),
        replaces_(change.replaces),
        replaces_bias_(shift.replaces),
        strength_(strength) {}

  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool ends_block) const override {
    if (!change_) return below(x, bias, residual, ends_block);
    const Conv2d* const conv = below.conv();
    const Tensor share = conv ? conv2d(x, change_, {}, *conv, residual) : linear(x, change_, {}, residual);
    if (!replaces_) return below(x, bias, share, ends_block);
    return finished(strength_ == 1 ? share : share + below(x, {}) * (1 - strength_), bias, {});
  }

  Tensor merged(const Tensor& w) const override {
    const Tensor base = cast(w, DType::f32);
    if (!change_) return base;
    const Tensor change = reshape(cast(change_.to(w.memory()), DType::f32), w.shape());
    return replaces_ ? base * (1 - strength_) + change : base + change;
  }
  Tensor merged_bias(const Tensor& bias) const override {
    if (!shift_) return bias;
    const Tensor base = bias ? cast(bias, DType::f32) : bias;
    return base ? (replaces_bias_ ? base * (1 - strength_) : base) + shift_.to(bias.memory()) : shift_;
  }
  Tensor looked_up(const Tensor& ids, const Tensor& rows) const override {
    if (!change_) return rows;
    const Tensor share = embedding(change_, ids, rows.dtype());
    return replaces_ ? (strength_ == 1 ? share : share + rows * (1 - strength_)) : rows + share;
  }
  bool changes_bias() const override { return bool(shift_); }
  bool needs_weight() const override { return replaces_; }

 private:
  Tensor change_, shift_;
  bool replaces_, replaces_bias_;
  float strength_;
};

class FullAlgorithm final : public AppliedAlgorithm {
 public:
  const char* name() const override { return "full difference"; }

  const std::vector<Factor>& factors() const override {
    static const std::vector<Factor> all = {
        {.name = "difference", .suffixes = {".diff"}, .optional = true, .frozen_only = true},
        {.name = "difference of the bias", .suffixes = {".diff_b"}, .optional = true, .frozen_only = true},
        {.name = "weight", .suffixes = {".set_weight"}, .optional = true, .frozen_only = true},
        {.name = "bias", .suffixes = {".base_layer.bias"}, .optional = true, .frozen_only = true}};
    return all;
  }

  void from_file(AdapterModule& module, const std::string& file) const override {
    const LoraTarget& t = module.target;
    check(!module.factors[kDifference].value || !module.factors[kWeight].value,
          "{}: {} has a difference and a weight; expected one of both", file, quote(module.name));
    for (const size_t factor : {kDifference, kWeight}) {
      Tensor& value = module.factors[factor].value;
      if (!value) continue;
      check_weight_shape(module.factors[factor], t, file);
      value = weight_from_file(value, module);
    }
    check(!module.factors[kDifferenceOfBias].value || !module.factors[kBias].value,
          "{}: {} has a difference of the bias and a bias; expected one of both", file, quote(module.name));
    for (const size_t factor : {kDifferenceOfBias, kBias}) {
      AdapterFactor& bias = module.factors[factor];
      if (!bias.value) continue;
      check_shape(bias, {t.out}, file);
      bias.value = reordered(bias.value, inverse(module.order));
    }
  }

  std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t, const Residence& place,
                                            const LoraDropout&) const override {
    AdapterModule& module = *parts.front().module;
    const float m = module.total_scale();
    const bool replaces = bool(module.factors[kWeight].value), replaces_bias = bool(module.factors[kBias].value);
    const auto placed = [&](size_t factor, DType dtype) {
      Tensor& value = module.factors[factor].value;
      if (!value) return Tensor();
      const Tensor there = cast((value * m).to(*place.memory), dtype);
      value = there;  // the file's is not needed again
      return there;
    };
    const Tensor change = placed(replaces ? kWeight : kDifference, place.activations),
                 shift = placed(replaces_bias ? kBias : kDifferenceOfBias, DType::f32);
    return std::make_shared<FullLayer>(FullLayer::Change{change, replaces}, FullLayer::Change{shift, replaces_bias}, m);
  }
};

class NormAlgorithm final : public AppliedAlgorithm {
 public:
  const char* name() const override { return "norm difference"; }

  const std::vector<Factor>& factors() const override {
    static const std::vector<Factor> all = {
        {.name = "difference", .suffixes = {".w_norm"}, .optional = true, .frozen_only = true},
        {.name = "difference of the bias", .suffixes = {".b_norm"}, .optional = true, .frozen_only = true}};
    return all;
  }

  void from_file(AdapterModule& module, const std::string& file) const override {
    fail("{}: {} is of a norm, and this model has another layer there", file, quote(module.name));
  }
  std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t, const Residence&,
                                            const LoraDropout&) const override {
    fail("{} is of a norm, and this model has another layer there", parts.front().module->name);
  }
};

}  // namespace

const AdapterAlgorithm& full_algorithm() {
  static const FullAlgorithm full;
  return full;
}

const AdapterAlgorithm& norm_algorithm() {
  static const NormAlgorithm norm;
  return norm;
}

}  // namespace wick
