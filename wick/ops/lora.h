// The LoRA linear (Hu et al., 2021): y = x w^T + bias + scale * (x down^T) up^T, scale = alpha / rank.
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

// x [..., K], w [N, K], down [R, K], up [N, R] (both f32). Saves x and s = x down^T if the factors are tracked.
Tensor lora_linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& down, const Tensor& up,
                   float scale);

struct LoraGrads {
  Tensor grad_down;  // [R, K]
  Tensor grad_up;    // [N, R]
};

// The adapter's gradients alone, for any leading batch dimensions and strides; needs no tape.
// grad_output [..., N], input [..., K].
LoraGrads lora_backward(const Tensor& grad_output, const Tensor& input, const Tensor& lora_down, const Tensor& lora_up,
                        float scale);

}  // namespace wick
