// OFT (Qiu et al., 2023) and BOFT (Liu et al., 2024) of outputs as an algorithm of adapters, as LyCORIS and kohya's
// networks.oft have them: rotations in blocks of the weight's rows. With Q = B - B^T of `oft_blocks` and
// R = (I + Q) (I - Q)^-1
//   OFT, blocks [K, N, N]       row block k of W becomes R_k^T W_k
//   BOFT, blocks [M, K, N, N]   for i = 0 … M - 1 rows are paired 2^i N / 2 apart, and row block k becomes R_ik W_k
// and then each row is multiplied by its `rescale`, where there is one. With a constraint c (the alpha) the norm of all
// of Q is at most c times the outputs. Biases are left alone. With a strength m it is I + m (R - I) and 1 + m (rescale
// - 1).
//
// The outputs are rotated, not the weight.
#include <algorithm>
#include <utility>

#include "wick/io/quote.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/nn/rotation.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

enum : size_t { kBlocks, kRescale };

class OutputRotation final : public LayerAdapter {
 public:
  // changes [M, K, N, N] by which rows are multiplied from the right, in the dtype of activations; a gain f32 [out] or
  // none. Both are of outputs in this order (AdapterModule::order).
  OutputRotation(Tensor changes, bool is_butterfly, Tensor gain, std::vector<int> order)
      : changes_(std::move(changes)), is_butterfly_(is_butterfly), gain_(std::move(gain)), order_(std::move(order)) {}

  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool) const override {
    return finished(turned(below(x, {}), changes_, gain_), bias, residual);
  }
  Tensor merged(const Tensor& w) const override {
    const Tensor columns = transpose(reshape(cast(w, DType::f32), {w.dim(0), -1}), 0, 1);
    const Tensor gain = gain_ ? gain_.to(w.memory()) : gain_,
                 all = turned(contiguous(columns), cast(changes_.to(w.memory()), DType::f32), gain);
    return reshape(contiguous(transpose(all, 0, 1)), w.shape());
  }
  bool needs_weight() const override { return true; }

 private:
  Tensor turned(Tensor y, const Tensor& changes, const Tensor& gain) const {
    const int64_t blocks = changes.dim(1), n = changes.dim(2);
    const int channels = y.rank() - 1;
    y = reordered(y, order_, channels);
    for (int64_t i = 0; i < changes.dim(0); ++i) {
      const Tensor change = reshape(slice(changes, 0, i, i + 1), {blocks, n, n});
      const int64_t apart = is_butterfly_ ? (int64_t{1} << i) * (n / 2) : 0;
      y = apart ? unpaired(rotated(paired(y, apart), change), apart) : rotated(y, change);
    }
    return reordered(gain ? scaled_channels(y, gain) : y, inverse(order_), channels);
  }

  Tensor changes_;
  bool is_butterfly_;
  Tensor gain_;
  std::vector<int> order_;
};

class OftAlgorithm final : public AppliedAlgorithm {
 public:
  const char* name() const override { return "OFT"; }

  const std::vector<Factor>& factors() const override {
    static const std::vector<Factor> all = {
        {.name = "blocks", .suffixes = {".oft_blocks"}, .frozen_only = true},
        {.name = "gain", .suffixes = {".rescale"}, .optional = true, .frozen_only = true}};
    return all;
  }

  // The blocks become R - I, or R^T - I of a butterfly.
  void from_file(AdapterModule& module, const std::string& file) const override {
    AdapterFactor& blocks = module.factors[kBlocks];
    check_blocks(blocks, module.target.out, file);
    Tensor skew = skew_part(blocks.value);
    const RotationSettings& r = module.rotation;
    check(r.constraint >= 0, "{}: {} has a constraint of {}; expected none below 0", file, quote(module.name),
          r.constraint);
    if (r.constraint > 0 || r.constrains_always)
      skew = bounded_norm(skew, double(r.constraint) * double(module.target.out));
    blocks.value = cayley(is_butterfly(module) ? -1 * skew : skew);
    AdapterFactor& gain = module.factors[kRescale];
    if (!gain.value) return;
    const int64_t out = module.target.out;
    if (gain.value.shape() != Shape{out, 1, 1, 1}) check_shape(gain, {out, 1}, file);
    gain.value = reshape(gain.value, {out});
  }

  std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t, const Residence& place,
                                            const LoraDropout&) const override {
    AdapterModule& module = *parts.front().module;
    const float m = module.total_scale();
    const Tensor &value = module.factors[kBlocks].value, &gain = module.factors[kRescale].value;
    const Shape shape{value.rank() == 4 ? value.dim(0) : 1, value.dim(-3), value.dim(-1), value.dim(-1)};
    return std::make_shared<OutputRotation>(cast((reshape(value, shape) * m).to(*place.memory), place.activations),
                                            is_butterfly(module),
                                            gain ? affine(gain, m, 1 - m).to(*place.memory) : gain, module.order);
  }

 private:
  static bool is_butterfly(const AdapterModule& module) { return module.factors[kBlocks].value.rank() == 4; }

  static void check_blocks(const AdapterFactor& blocks, int64_t out, const std::string& file) {
    const Shape& shape = blocks.value.shape();
    const bool is_square =
        (shape.rank() == 3 || shape.rank() == 4) && shape[shape.rank() - 1] == shape[shape.rank() - 2];
    check(is_square && shape[shape.rank() - 3] * shape.back() == out,
          "{}: {} should hold square blocks for {} outputs of this model, found shape {}", file, quote(blocks.key), out,
          shape);
    if (shape.rank() == 3) return;
    constexpr int64_t kMost = 60;  // 2^60 is more than any layer has
    const int64_t factors = shape[0], n = shape.back();
    check(n % 2 == 0 && factors <= kMost && out % (n << std::max<int64_t>(factors - 1, 0)) == 0,
          "{}: {} has {} factors with blocks of {}, which do not pair {} outputs", file, quote(blocks.key), factors, n,
          out);
  }
};

}  // namespace

const AdapterAlgorithm& oft_algorithm() {
  static const OftAlgorithm oft;
  return oft;
}

}  // namespace wick
