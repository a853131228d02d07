// LoRA (Hu et al., 2021): y = x w^T + bias + scale * (x down^T) up^T with scale = alpha / rank, and the same for
// convolutions.
#pragma once

#include <memory>
#include <vector>

#include "wick/autograd/tape.h"

namespace wick {

// The LoRA of one linear, or of several that share x and lie side by side in one: see LoraFactors in backend.h. Kernels
// may read a copy of a factor in another dtype; the gradient is the factor's, in f32.
struct LoraPart {
  Input down, up;    // the factors [R, ...] and [N, R]: where gradients go
  Tensor up_values;  // [N, R or more], padded with zeros; those of down are as many rows of Lora::down
  int64_t column = 0, row = 0;
  float scale = 1;
};
struct LoraDropout {
  float p = 0;                               // of elements of x
  float rank_p = 0;                          // of ranks; those that are left count 1 / (1 - rank_p) times
  float part_p = 0;                          // of whole parts, without any in return
  std::vector<uint64_t> seeds = {};          // one a part; elements of x go by the first
  std::shared_ptr<const Tensor> draws = {};  // i64 [S] beside the factors, one for each sample of the batch that the
                                             // trainer writes; ranks and parts go by the first
  std::shared_ptr<const bool> paused = {};   // nothing is dropped while it is true, in validation

  bool drops_elements() const { return p > 0 && !is_paused(); }
  bool drops_ranks() const { return (rank_p > 0 || part_p > 0) && !is_paused(); }

 private:
  bool is_paused() const { return paused && *paused; }
};
struct Lora {
  Tensor down;  // [R, K]
  std::vector<LoraPart> parts;
  LoraDropout dropout = {};
  Tensor mask = {};  // f32 [R, 1], of the rows that this call uses; none: all. Not set by callers

  static Lora of(const Tensor& down, const Tensor& up, float scale) { return {down, {{down, up, up, 0, 0, scale}}}; }
  // Of f32 factors; kernels read copies in `dtype`, whose rows are whole multiples of 16 bytes.
  static Lora of(const Tensor& down, const Tensor& up, float scale, DType dtype);
};

// x [..., K], w [N, K] or empty (then there is no bias); residual [..., N] is added and may be empty; ends_block as for
// linear(). Saves x if a down is trained, and s = dropout(x) down^T if an up is.
Tensor lora_linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Lora& lora, const Tensor& residual = {},
                   bool ends_block = false);

// swiglu(lora_linear(x, w, bias, lora)), for inference.
Tensor lora_gated_linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Lora& lora);

// y = conv2d(x, w, bias) + residual + scale * low up^T of each pixel, with low = conv2d(dropout(x), down): down
// [R, KH, KW, I] is a convolution of the same stride and padding. residual may be empty; without w it is not. Saves x
// if down is trained, and low if up is.
Tensor lora_conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2d& conv, const Lora& lora,
                   const Tensor& residual = {});

struct LoraGrads {
  Tensor grad_down;  // [R, K]
  Tensor grad_up;    // [N, R]
};

// The adapter's gradients alone, for any leading batch dimensions and strides; needs no tape.
// grad_output [..., N], input [..., K].
LoraGrads lora_backward(const Tensor& grad_output, const Tensor& input, const Tensor& lora_down, const Tensor& lora_up,
                        float scale);

}  // namespace wick
