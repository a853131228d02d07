// IA3 (Liu et al., 2022) as algorithms of adapters: a gain for each output or input. LyCORIS' is 1 + weight and leaves
// the bias alone; PEFT's is its vector itself, and those of outputs scale the bias too. With a strength m both are 1 +
// m (gain - 1).
#include <utility>

#include "wick/io/quote.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

constexpr size_t kGain = 0, kOnInput = 1;

class GainLayer final : public LayerAdapter {
 public:
  // gain f32 [in] or [out]
  GainLayer(Tensor gain, bool of_inputs, bool scales_bias)
      : gain_(std::move(gain)), of_inputs_(of_inputs), scales_bias_(scales_bias) {}

  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool ends_block) const override {
    if (of_inputs_) return below(scaled_channels(x, gain_), bias, residual, ends_block);
    return finished(scaled_channels(below(x, {}), gain_), bias, residual);
  }

  Tensor merged(const Tensor& w) const override {
    Shape shape = w.shape();
    for (int64_t& extent : shape) extent = 1;
    shape[of_inputs_ ? shape.rank() - 1 : 0] = gain_.dim(0);
    return cast(w, DType::f32) * reshape(gain_.to(w.memory()), shape);
  }
  Tensor merged_bias(const Tensor& bias) const override {
    return bias && changes_bias() ? cast(bias, DType::f32) * gain_.to(bias.memory()) : bias;
  }
  bool changes_bias() const override { return scales_bias_ && !of_inputs_; }
  bool needs_weight() const override { return true; }

 private:
  Tensor gain_;
  bool of_inputs_, scales_bias_;
};

// `difference` from 1, f32 [in] or [out].
std::shared_ptr<const LayerAdapter> gain_layer(const AdapterModule& module, const Tensor& difference, bool of_inputs,
                                               bool scales_bias, const Residence& place) {
  const Tensor ordered = of_inputs ? difference : reordered(difference, inverse(module.order));
  const Tensor gain = affine(ordered, module.total_scale(), 1).to(*place.memory);
  return std::make_shared<GainLayer>(gain, of_inputs, scales_bias);
}

class LycorisIa3 final : public AppliedAlgorithm {
 public:
  const char* name() const override { return "IA3"; }

  const std::vector<Factor>& factors() const override {
    static const std::vector<Factor> all = {
        {.name = "vector", .suffixes = {".weight"}, .frozen_only = true, .beside = ".on_input"},
        {.name = "side", .suffixes = {".on_input"}, .frozen_only = true}};
    return all;
  }

  void from_file(AdapterModule& module, const std::string& file) const override {
    const Tensor& side = module.factors[kOnInput].value;
    check(side.numel() == 1, "{}: {} should be one number, found shape {}", file, quote(module.factors[kOnInput].key),
          side.shape());
    AdapterFactor& gain = module.factors[kGain];
    const int64_t channels = of_inputs(module) ? module.target.in : module.target.out;
    if (gain.value.shape() != Shape{1, channels, 1, 1}) check_shape(gain, {channels}, file);
    gain.value = reshape(gain.value, {channels});
  }

  std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t, const Residence& place,
                                            const LoraDropout&) const override {
    const AdapterModule& module = *parts.front().module;
    return gain_layer(module, module.factors[kGain].value, of_inputs(module), /*scales_bias=*/false, place);
  }

 private:
  static bool of_inputs(const AdapterModule& module) { return module.factors[kOnInput].value.item() != 0; }
};

class PeftIa3 final : public AppliedAlgorithm {
 public:
  const char* name() const override { return "IA3"; }

  const std::vector<Factor>& factors() const override {
    static const std::vector<Factor> all = {{.name = "vector", .suffixes = {".ia3_l"}, .frozen_only = true}};
    return all;
  }

  // [out, 1], or [1, in] of a feed-forward layer; of a convolution [1, C, 1, 1] both.
  void from_file(AdapterModule& module, const std::string& file) const override {
    const AdapterFactor& gain = module.factors[kGain];
    const LoraTarget& t = module.target;
    check(!t.conv || t.in != t.out, "{}: {} does not tell inputs from outputs, of which this model's layer has as many",
          file, quote(gain.key));
    if (!of_inputs(module)) check_shape(gain, t.conv ? Shape{1, t.out, 1, 1} : Shape{t.out, 1}, file);
  }

  std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t, const Residence& place,
                                            const LoraDropout&) const override {
    const AdapterModule& module = *parts.front().module;
    const Tensor difference = affine(reshape(module.factors[kGain].value, {-1}), 1, -1);
    return gain_layer(module, difference, of_inputs(module), /*scales_bias=*/true, place);
  }

 private:
  static bool of_inputs(const AdapterModule& module) {
    const LoraTarget& t = module.target;
    return module.factors[kGain].value.shape() == (t.conv ? Shape{1, t.in, 1, 1} : Shape{1, t.in});
  }
};

}  // namespace

const AdapterAlgorithm& ia3_algorithm() {
  static const LycorisIa3 ia3;
  return ia3;
}

const AdapterAlgorithm& peft_ia3_algorithm() {
  static const PeftIa3 ia3;
  return ia3;
}

}  // namespace wick
