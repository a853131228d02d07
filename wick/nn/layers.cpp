#include "wick/nn/layers.h"

#include <utility>

namespace wick {

Linear::Linear(const Scope& s, int64_t in, int64_t out, bool bias) : Linear(s, LoraTarget{in, out}, bias) {}

Linear::Linear(const Scope& s, const LoraTarget& target, bool bias)
    : weight_(s.load("weight", {target.out, target.in})),
      bias_(bias ? s.load("bias", {target.out}) : Tensor()),
      lora_(s.adapt(target)) {}

Linear::Linear(Tensor weight, Tensor bias, std::optional<Lora> lora)
    : weight_(std::move(weight)), bias_(std::move(bias)), lora_(std::move(lora)) {}

Linear Linear::pointwise(const Scope& s, int64_t in, int64_t out) {
  return Linear(s, LoraTarget{in, out, 1, /*conv=*/true}, /*bias=*/true);
}

Tensor Linear::operator()(const Tensor& x) const {
  if (!lora_) return linear(x, weight_, bias_);
  return lora_linear(x, weight_, bias_, *lora_);
}

Conv::Conv(const Scope& s, int64_t in, int64_t out, int kernel, Conv2d conv)
    : weight_(s.load_conv("weight", {out, in, kernel, kernel})),
      bias_(s.load("bias", {out})),
      conv_(conv),
      lora_(s.adapt({in, out, kernel, /*conv=*/true})) {}

Tensor Conv::operator()(const Tensor& x) const {
  const Tensor y = conv2d(x, weight_, bias_, conv_);
  if (!lora_) return y;
  const Tensor low = conv2d(x, lora_->down, {}, conv_);  // [B, H', W', r]
  return y + lora_->parts.front().scale * linear(low, lora_->parts.front().up_values);
}

GroupNorm::GroupNorm(const Scope& s, int64_t channels, int group_count, float epsilon)
    : weight(s.load("weight", {channels})), bias(s.load("bias", {channels})), groups(group_count), eps(epsilon) {}

LayerNorm::LayerNorm(const Scope& s, int64_t dim, float epsilon)
    : weight(s.load("weight", {dim})), bias(s.load("bias", {dim})), eps(epsilon) {}

Embedding::Embedding(const Scope& s, int64_t count, int64_t dim)
    : table(s.load("weight", {count, dim})), activations(s.place().activations) {}

}  // namespace wick
