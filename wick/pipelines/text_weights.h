// The tokens of an adapter's words, and weights of a text's tokens: how far their states lie from those of an empty
// text (ComfyUI, comfy/sd1_clip.py).
#pragma once

#include <vector>

#include "wick/core/tensor.h"
#include "wick/nn/adapter.h"
#include "wick/text/learned_word.h"

namespace wick {

// The words that an adapter, which may be null, teaches an encoder of this vocabulary.
std::vector<LearnedWord> learned_words(const Adapter* adapter, const std::string& encoder, int64_t vocabulary);

// As a part of the conditioning, f32 on the host; empty where all weigh 1.
Tensor weights_tensor(const std::vector<float>& weights, const Shape& shape);

// empty + weight * (states - empty) in f32, of the states' dtype, and exactly the states where the weight is 1. states
// [B, N, D], those of an empty text [1, N, D], weights of B * N elements.
Tensor weighted(const Tensor& states, const Tensor& empty, const Tensor& weights);

}  // namespace wick
