#include "wick/nn/dora.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "wick/io/quote.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/matmul.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

constexpr int64_t kPiece = 4 << 20;  // elements of a weight that are squared at once

// A convolution's weight [O, KH, KW, I] as a matrix of pixels and channels.
Tensor matrix_of(const Tensor& w) { return w.rank() == 2 ? w : reshape(w, {w.dim(0), -1}); }

// Sums over a matrix [O, P * I], I = channels: of each row, or of each channel.
Tensor summed(const Tensor& values, bool of_inputs, int64_t channels) {
  if (!of_inputs) return reshape(sum_to(values, {values.dim(0), 1}), {-1});
  return reshape(sum_to(reshape(values, {-1, channels}), {1, channels}), {channels});
}

// |w|^2 of rows or columns, f32.
Tensor squared_norms(const Tensor& w, bool of_inputs) {
  const int64_t outputs = w.dim(0), channels = w.dim(-1), width = w.numel() / std::max<int64_t>(outputs, 1);
  const int64_t rows = std::max<int64_t>(1, kPiece / std::max<int64_t>(width, 1));
  const Tensor all = zeros({of_inputs ? channels : outputs}, DType::f32, w.memory());
  for (int64_t begin = 0; begin < outputs; begin += rows) {
    const int64_t end = std::min(outputs, begin + rows);
    const Tensor piece = matrix_of(contiguous(cast(slice(w, 0, begin, end), DType::f32)));
    const Tensor sums = summed(square(piece), of_inputs, channels);
    const Tensor to = of_inputs ? all : slice(all, 0, begin, end);
    to.backend().accumulate(to, sums, 1);
  }
  return all;
}

// So that they have roots.
Tensor positive(const Tensor& squares) { return clamp(squares, 1e-30f, std::numeric_limits<float>::infinity()); }

// 1 / (sqrt(squares) + eps), as LyCORIS and ComfyUI have it in f32. In training eps is left out, as PEFT does.
Tensor inverse_norms(const Tensor& squares) {
  const Tensor from = positive(squares);
  return square(rsqrt(from * rsqrt(from) + std::numeric_limits<float>::epsilon()));
}

// w [O, ...] with each output's row, or each input channel, times its gain.
Tensor scaled_weight(const Tensor& w, const Tensor& gain, bool of_inputs) {
  Shape shape = w.shape();
  for (int64_t& extent : shape) extent = 1;
  shape[of_inputs ? shape.rank() - 1 : 0] = gain.dim(0);
  return w * reshape(gain, shape);
}

class DoraLayer final : public LayerAdapter {
 public:
  DoraLayer(std::shared_ptr<const LayerAdapter> change, AdapterModule& module, const Residence& place)
      : change_(std::move(change)), module_(module), place_(place) {
    Magnitude& m = module.magnitude;
    m.factor.place(*place.memory);
    known_ = zeros(m.factor.value.shape(), DType::f32, *place.memory);
  }

  Tensor forward(const LayerBelow& below, const Tensor& x, const Tensor& bias, const Tensor& residual,
                 bool ends_block) const override {
    const Magnitude& m = module_.magnitude;
    const Tensor gain = module_.is_trained() ? trained_gain(below) : known_;
    if (m.strength != 1) return blended(below, x, gain, bias, residual);
    if (m.of_inputs) return change_->forward(below, scaled_channels(x, gain), bias, residual, ends_block);
    return finished(scaled_channels(change_->forward(below, x, {}, {}, false), gain), bias, residual);
  }

  Tensor merged(const Tensor& w) const override {
    const Magnitude& m = module_.magnitude;
    const Tensor base = cast(w, DType::f32), whole = change_->merged(base);
    const Tensor gain = m.factor.value.detached().to(w.memory()) * inverse_norms(squared_norms(whole, m.of_inputs));
    const Tensor result = scaled_weight(whole, gain, m.of_inputs);
    return m.strength == 1 ? result : base * (1 - m.strength) + result * m.strength;
  }

  // Its magnitude is of the weight alone.
  Tensor merged_bias(const Tensor& bias) const override { return change_->merged_bias(bias); }
  bool changes_bias() const override { return change_->changes_bias(); }
  bool needs_weight() const override { return true; }

  // The gain of frozen factors; of trained ones |W|^2, to which a step adds.
  void rest_on(const Tensor& w) const override {
    const Arena arena(w.memory());
    const Magnitude& m = module_.magnitude;
    if (!module_.is_trained()) {
      const Tensor squares = squared_norms(change_->merged(w), m.of_inputs);
      return known_.backend().copy(known_, m.factor.value.detached() * inverse_norms(squares));
    }
    known_.backend().copy(known_, positive(squared_norms(w, m.of_inputs)));
    if (!m.is_fresh) return;
    const Tensor value = m.factor.value.detached();
    value.backend().copy(value, known_ * rsqrt(known_));
  }

 private:
  // ComfyUI's and LyCORIS' strength: between the layer below and the whole DoRA.
  Tensor blended(const LayerBelow& below, const Tensor& x, const Tensor& gain, const Tensor& bias,
                 const Tensor& residual) const {
    const Magnitude& m = module_.magnitude;
    const Tensor whole = m.of_inputs ? change_->forward(below, scaled_channels(x, gain), {}, {}, false)
                                     : scaled_channels(change_->forward(below, x, {}, {}, false), gain);
    return finished(whole * m.strength + below(x, {}) * (1 - m.strength), bias, residual);
  }

  // m / |W + D|.
  Tensor trained_gain(const LayerBelow& below) const {
    const Tensor squares = [&] {
      const TapePause norms_are_constants;
      return module_.algorithm == &lora_algorithm()
                 ? squares_of_lora(below.weight())
                 : positive(squared_norms(change_->merged(below.weight()), module_.magnitude.of_inputs));
    }();
    return module_.magnitude.factor.value * rsqrt(squares);
  }

  // |W + s B A|^2. With W A^T, or B^T W, the weight is read once and no product of its size is made:
  // |w + s b A|^2 = |w|^2 + 2 s b (A w^T) + s^2 b (A A^T) b^T for a row w and its b, and likewise for columns. These
  // are small kernels for each module, so that their number counts.
  Tensor squares_of_lora(const Tensor& weight) const {
    const bool of_inputs = module_.magnitude.of_inputs;
    const Tensor w = matrix_of(weight), a = down(), b = up();
    const Tensor change = of_inputs ? change_of_columns(w, a, b) : change_of_rows(w, a, b);
    return known_ + summed(change, of_inputs, of_inputs ? module_.target.in : change.dim(1));
  }
  Tensor down() const { return matrix_of(module_.factors[0].value.detached()); }  // A [R, P * I]
  Tensor up() const { return module_.factors[1].value.detached(); }               // B [O, R]
  // The same in the dtype in which the weight is multiplied.
  Tensor as_multiplied(size_t factor) const {
    const auto& [key, value, copy] = module_.factors[factor];
    return matrix_of(copy ? copy : cast(value.detached(), place_.activations));
  }

  // (2 s W A^T + s^2 B (A A^T)) * B, whose rows' sums are what the norms' squares grow by.
  Tensor change_of_rows(const Tensor& w, const Tensor& a, const Tensor& b) const {
    const float s = module_.total_scale();
    const Tensor factor = as_multiplied(0);
    Tensor inner;
    if (is_float(w.dtype())) {
      inner = Tensor::empty(b.shape(), DType::f32, b.memory());
      inner.backend().matmul(inner, w, transpose(factor, 0, 1), 2 * s, 0);
    } else {
      inner = affine(cast(transpose(linear(factor, w), 0, 1), DType::f32), 2 * s, 0);
    }
    inner.backend().matmul(inner, b, matmul(a, transpose(a, 0, 1)), s * s, 1);
    return inner * b;
  }

  // (2 s B^T W + s^2 (B^T B) A) * A, likewise of columns.
  Tensor change_of_columns(const Tensor& w, const Tensor& a, const Tensor& b) const {
    const float s = module_.total_scale();
    const Tensor bt = transpose(b, 0, 1), factor = transpose(as_multiplied(1), 0, 1);
    Tensor inner;
    if (is_float(w.dtype())) {
      inner = Tensor::empty(a.shape(), DType::f32, a.memory());
      inner.backend().matmul(inner, factor, w, 2 * s, 0);
    } else {
      inner = affine(cast(matmul(contiguous(factor), w), DType::f32), 2 * s, 0);
    }
    inner.backend().matmul(inner, matmul(bt, b), a, s * s, 1);
    return inner * a;
  }

  std::shared_ptr<const LayerAdapter> change_;
  const AdapterModule& module_;
  Residence place_;
  Tensor known_;  // f32 [out] or [in], see rest_on()
};

}  // namespace

Magnitude fresh_magnitude(const LoraTarget& target, bool of_inputs, const std::string& key, Memory& memory) {
  const Tensor value = zeros({of_inputs ? target.in : target.out}, DType::f32, memory);
  return {.factor = {key, value.trainable()}, .of_inputs = of_inputs, .is_fresh = true};
}

void read_magnitude(AdapterModule& module, const std::string& file) {
  Magnitude& m = module.magnitude;
  const Shape& shape = m.factor.value.shape();
  const LoraTarget& t = module.target;
  const bool is_peft = m.factor.key.find(".lora_magnitude_vector") != std::string::npos;  // [1, out, 1, 1] of Conv2d
  const int64_t first = shape.rank() > 0 ? shape[0] : 0;
  m.of_inputs = !is_peft && first != t.out && first == 1 && shape.rank() > 1;
  const int64_t channels = m.of_inputs ? t.in : t.out;
  const bool has_channels = std::ranges::find(shape, channels) != shape.end();
  check(has_channels && shape.numel() == channels,
        "{}: {} should have shape [{}, 1] or [1, {}] for this model, found {}", file, quote(m.factor.key), t.out, t.in,
        shape);
  m.factor.value = reshape(m.factor.value, {channels});
  if (!m.of_inputs) m.factor.value = reordered(m.factor.value, inverse(module.order));
}

Tensor magnitude_to_file(const Tensor& value, const AdapterModule& module, const std::vector<int>& order) {
  const bool of_inputs = module.magnitude.of_inputs;
  const int64_t channels = value.dim(0);
  const Tensor ordered = of_inputs ? value : reordered(value, order);
  if (module.target.conv) return reshape(ordered, of_inputs ? Shape{1, channels, 1, 1} : Shape{channels, 1, 1, 1});
  return reshape(ordered, of_inputs ? Shape{1, channels} : Shape{channels, 1});
}

std::shared_ptr<const LayerAdapter> with_magnitude(std::shared_ptr<const LayerAdapter> change, AdapterModule& module,
                                                   const Residence& place) {
  return std::make_shared<DoraLayer>(std::move(change), module, place);
}

}  // namespace wick
