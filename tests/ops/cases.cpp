// The rows. Sizes are odd on purpose.
#include <cmath>
#include "device.h"
#include "wick/autograd/block_stream.h"

#include "ops/harness.h"

namespace wick::test {
namespace {

using In = std::vector<Tensor>;

Tensor ids(std::vector<int64_t> values) {
  const Shape shape{int64_t(values.size())};
  return Tensor::of(values, shape);
}

Tensor ranges(const std::vector<int64_t>& bounds, const Shape& shape) {
  return cast(Tensor::of(bounds, shape), DType::i32).to(memory());
}

// Cosines (0) or sines (1) of some angles.
Tensor angles(const Shape& shape, int which) {
  std::vector<float> values;
  for (int64_t i = 0; i < shape.numel(); ++i)
    values.push_back(which ? std::sin(0.7f * float(i)) : std::cos(0.7f * float(i)));
  return Tensor::of(values, shape, memory());
}

// Two linears of the same input with a LoRA each, of ranks 2 and 3, and between them one without; a row pads the first.
// down is x[1] and x[3], up x[2] and x[4].
Lora side_by_side(const In& x) {
  const Tensor pad = zeros({1, x[1].dim(1)}, DType::f32, memory());
  return {cat({x[1].detached(), pad, x[3].detached()}, 0),
          {{x[1], x[2], x[2], 0, 0, 0.5f}, {x[3], x[4], x[4], x[2].dim(0) + 4, x[1].dim(0) + 1, -1.5f}}};
}

// Of x a share of 0.4, of ranks these, and the parts whose coins say so.
Lora dropping(Lora lora, float ranks = 0, float parts = 0) {
  lora.dropout = {.p = 0.4f,
                  .rank_p = ranks,
                  .part_p = parts,
                  .seeds = {17, 18},
                  .draws = std::make_shared<Tensor>(Tensor::of(std::vector<int64_t>{5}, {1}, memory()))};
  return lora;
}

Tensor constant(const Shape& shape) {
  Rng rng(3);
  return random_normal(shape, rng, memory());
}

std::vector<OpCase> make_cases() {
  std::vector<OpCase> rows;
  auto row = [&](const char* op, const char* name, std::vector<Shape> inputs, auto f, float scale = 1,
                 float shift = 0) {
    rows.push_back({op, name, std::move(inputs), f, 1e-2, scale, shift});
  };

  row("add", "add", {{3, 5}, {3, 5}}, [](const In& x) { return add(x[0], x[1]); });
  row("add", "add_bias", {{2, 3, 5}, {5}}, [](const In& x) { return add(x[0], x[1]); });
  row("add", "add_both_broadcast", {{3, 1, 5}, {7, 1}}, [](const In& x) { return add(x[0], x[1]); });
  row("sub", "sub", {{3, 5}, {5}}, [](const In& x) { return sub(x[0], x[1]); });
  row("mul", "mul", {{3, 5}, {3, 5}}, [](const In& x) { return mul(x[0], x[1]); });
  row("mul", "mul_broadcast", {{2, 3, 5}, {2, 1, 1}}, [](const In& x) { return mul(x[0], x[1]); });
  row("affine", "affine", {{3, 5}}, [](const In& x) { return affine(x[0], -1.5f, 0.25f); });
  row("clamp", "clamp", {{3, 37}}, [](const In& x) { return clamp(x[0], -8, 8); });
  row("clamp", "clamp_all", {{3, 5}}, [](const In& x) { return clamp(x[0], -9, -8); });
  row(
      "silu", "silu", {{3, 37}}, [](const In& x) { return silu(x[0]); }, 3);
  row(
      "gelu", "gelu", {{3, 37}}, [](const In& x) { return gelu(x[0]); }, 2);
  row(
      "gelu_tanh", "gelu_tanh", {{3, 37}}, [](const In& x) { return gelu_tanh(x[0]); }, 2);
  row(
      "quick_gelu", "quick_gelu", {{3, 37}}, [](const In& x) { return quick_gelu(x[0]); }, 2);
  row("exp", "exp", {{3, 37}}, [](const In& x) { return exp(x[0]); });
  row("square", "square", {{3, 37}}, [](const In& x) { return square(x[0]); });
  row("rsqrt", "rsqrt", {{3, 37}}, [](const In& x) { return rsqrt(square(x[0]) + 1); });
  row("geglu", "geglu", {{3, 5, 14}}, [](const In& x) { return geglu(x[0]); });
  row("swiglu", "swiglu", {{3, 5, 14}}, [](const In& x) { return swiglu(x[0]); });
  row("gated_add", "gated_add", {{2, 3, 5}, {2, 5}, {2, 3, 5}},
      [](const In& x) { return gated_add(x[0], x[1], x[2]); });
  row("gated_add", "gated_add_norm", {{2, 3, 17}, {2, 17}, {2, 3, 17}, {2, 17}, {2, 17}}, [](const In& x) {
    const NormedSum y = gated_add_norm(x[0], x[1], x[2], 1e-6f, {x[3], x[4]});
    return y.sum * y.norm;
  });
  row("gated_add", "gated_add_norm_alone", {{2, 3, 17}, {2, 17}, {2, 3, 17}},
      [](const In& x) { return gated_add_norm(x[0], x[1], x[2], 1e-6f, {}).norm; });
  row("gated_add", "gated_add_frozen_gate", {{2, 1, 3, 5}, {2, 1, 3, 5}}, [](const In& x) {
    static const Tensor gate = constant({2, 5});
    return gated_add(x[0], gate, x[1]);
  });
  row("beside_gelu_tanh", "beside_gelu_tanh", {{2, 3, 5}, {2, 3, 4}},
      [](const In& x) { return beside_gelu_tanh(x[0], x[1]); });
  row("sum_to", "sum", {{3, 5, 7}}, [](const In& x) { return sum(x[0]); });
  row("sum_to", "sum_to_rows", {{3, 5, 7}}, [](const In& x) { return sum_to(x[0], {5, 1}); });
  row("sum_to", "mean", {{3, 5}}, [](const In& x) { return mean(x[0]); });

  row("matmul", "matmul", {{5, 7}, {7, 3}}, [](const In& x) { return matmul(x[0], x[1]); });
  row("matmul", "matmul_batched", {{2, 3, 5, 7}, {2, 3, 7, 4}}, [](const In& x) { return matmul(x[0], x[1]); });
  row("matmul", "matmul_broadcast", {{3, 5, 7}, {7, 4}}, [](const In& x) { return matmul(x[0], x[1]); });
  row("linear", "linear", {{3, 5, 7}, {11, 7}, {11}}, [](const In& x) { return linear(x[0], x[1], x[2]); });
  row("linear", "linear_no_bias", {{5, 7}, {3, 7}}, [](const In& x) { return linear(x[0], x[1]); });
  row("linear", "linear_residual", {{3, 5, 7}, {11, 7}, {11}, {3, 5, 11}},
      [](const In& x) { return linear(x[0], x[1], x[2], x[3]); });
  row("linear", "linear_onto_itself", {{3, 5, 7}, {7, 7}}, [](const In& x) { return linear(x[0], x[1], {}, x[0]); });
  row("lora_linear", "lora_linear_residual", {{3, 5, 7}, {4, 7}, {11, 4}, {3, 5, 11}}, [](const In& x) {
    static const Tensor w = constant({11, 7});
    return lora_linear(x[0], w, {}, Lora::of(x[1], x[2], 0.625f), x[3]);
  });
  row("lora_linear", "lora_linear", {{3, 5, 7}, {4, 7}, {11, 4}}, [](const In& x) {
    Rng rng(3);
    static const Tensor w = random_normal({11, 7}, rng, memory()), bias = random_normal({11}, rng, memory());
    return lora_linear(x[0], w, bias, Lora::of(x[1], x[2], 0.625f));
  });
  row("lora_linear", "lora_linear_of_a_weight_elsewhere", {{3, 7}, {4, 7}, {11, 4}, {3, 11}},
      [](const In& x) { return lora_linear(x[0], {}, {}, Lora::of(x[1], x[2], 0.625f), x[3]); });
  row("lora_linear", "lora_linear_rank_1", {{1, 7}, {1, 7}, {3, 1}}, [](const In& x) {
    Rng rng(4);
    static const Tensor w = random_normal({3, 7}, rng, memory());
    return lora_linear(x[0], w, {}, Lora::of(x[1], x[2], 2.0f));
  });

  row("lora_linear", "lora_linear_side_by_side", {{2, 3, 7}, {2, 7}, {5, 2}, {3, 7}, {6, 3}}, [](const In& x) {
    static const Tensor w = constant({15, 7}), bias = constant({15});
    return lora_linear(x[0], w, bias, side_by_side(x));
  });
  row("lora_linear", "lora_linear_dropout", {{2, 3, 7}, {2, 7}, {5, 2}, {3, 7}, {6, 3}}, [](const In& x) {
    static const Tensor w = constant({15, 7});
    return lora_linear(x[0], w, {}, dropping(side_by_side(x)));
  });
  row("lora_linear", "lora_linear_dropout_of_ranks", {{2, 3, 7}, {2, 7}, {5, 2}, {3, 7}, {6, 3}}, [](const In& x) {
    static const Tensor w = constant({15, 7});
    return lora_linear(x[0], w, {}, dropping(side_by_side(x), 0.5f, 0.3f));
  });
  row("lora_conv2d", "lora_conv2d", {{2, 5, 6, 3}, {2, 3, 3, 3}, {4, 2}}, [](const In& x) {
    static const Tensor w = constant({4, 3, 3, 3}), bias = constant({4});
    return lora_conv2d(x[0], w, bias, {2, 1, 0, 0, 1}, Lora::of(x[1], x[2], 0.75f));
  });
  row("lora_conv2d", "lora_conv2d_dropout", {{1, 4, 5, 3}, {3, 3, 3, 3}, {4, 3}}, [](const In& x) {
    static const Tensor w = constant({4, 3, 3, 3});
    return lora_conv2d(x[0], w, {}, {1, 1, 1, 1, 1}, dropping(Lora::of(x[1], x[2], 2.0f)));
  });

  row("lora_conv2d", "lora_conv2d_dropout_of_ranks", {{1, 4, 5, 3}, {3, 3, 3, 3}, {4, 3}}, [](const In& x) {
    static const Tensor w = constant({4, 3, 3, 3});
    return lora_conv2d(x[0], w, {}, {1, 1, 1, 1, 1}, dropping(Lora::of(x[1], x[2], 2.0f), 0.4f, 0.1f));
  });

  row("lora_conv2d", "lora_conv2d_padded", {{1, 4, 5, 3}, {2, 3, 3, 3}, {4, 2}}, [](const In& x) {
    static const Tensor w = constant({4, 3, 3, 3});
    const Tensor down = cat({x[1].detached(), zeros({6, 3, 3, 3}, DType::f32, memory())}, 0);
    return lora_conv2d(x[0], w, {}, {1, 1, 1, 1, 1}, {down, {{x[1], x[2], x[2], 0, 0, 0.75f}}});
  });

  row("conv2d", "conv2d_3x3", {{2, 5, 7, 3}, {4, 3, 3, 3}, {4}}, [](const In& x) {
    return conv2d(x[0], x[1], x[2], {1, 1, 1, 1, 1});
  });
  row("conv2d", "conv2d_and_more", {{2, 4, 3, 3}, {4, 3, 3, 3}, {4}, {2, 1, 1, 4}}, [](const In& x) {
    return conv2d(x[0], x[1], x[2], {1, 1, 1, 1, 1}, x[3]);
  });
  row("conv2d", "conv2d_stride_asymmetric", {{1, 6, 8, 3}, {5, 3, 3, 3}}, [](const In& x) {
    return conv2d(x[0], x[1], {}, {2, 0, 0, 1, 1});
  });
  row("conv2d", "conv2d_1x1", {{2, 3, 5, 6}, {4, 1, 1, 6}, {4}},
      [](const In& x) { return conv2d(x[0], x[1], x[2], {}); });
  row("upsample_nearest", "upsample_nearest", {{2, 3, 5, 4}}, [](const In& x) { return upsample_nearest(x[0], 2); });

  row("joint_attention", "joint_attention", {{2, 3, 36}, {6}, {6}, {2, 5, 36}, {6}, {6}}, [](const In& x) {
    static const Rotary rotary{angles({8, 3}, 0), angles({8, 3}, 1)};
    return joint_attention({{x[0], x[1], x[2]}, {x[3], x[4], x[5]}}, {.heads = 2, .rotary = rotary});
  });
  row("joint_attention", "joint_attention_of_one_stream", {{1, 5, 27}}, [](const In& x) {
    return joint_attention({{x[0], {}, {}}}, {.heads = 3});
  });
  row("joint_attention", "joint_attention_within_ranges", {{2, 2, 12}, {2, 1, 12}}, [](const In& x) {
    static const Tensor seen = ranges({1, 3, 1, 3, 1, 3, 0, 3, 0, 3, 0, 3}, {2, 3, 2});
    return joint_attention({{x[0], {}, {}}, {x[1], {}, {}}}, {.heads = 2, .ranges = seen});
  });
  row("joint_attention", "joint_attention_beside_others", {{2, 4, 17}}, [](const In& x) {
    static const Tensor norm = constant({4});
    const std::vector<Tensor> parts = split(x[0], -1, {12, 5});
    return beside_gelu_tanh(joint_attention({{parts[0], norm, norm}}, {.heads = 1}), parts[1]);
  });

  row("group_norm", "group_norm", {{2, 3, 5, 12}, {12}, {12}},
      [](const In& x) { return group_norm(x[0], x[1], x[2], 4, 1e-5f); });
  row("group_norm", "group_norm_silu", {{2, 11, 6}, {6}, {6}},
      [](const In& x) { return group_norm(x[0], x[1], x[2], 2, 1e-6f, true); });
  row("layer_norm", "layer_norm", {{3, 5, 17}, {17}, {17}},
      [](const In& x) { return layer_norm(x[0], x[1], x[2], 1e-5f); });
  row("layer_norm", "layer_norm_modulated", {{2, 3, 17}, {17}, {17}, {2, 17}, {2, 17}}, [](const In& x) {
    return layer_norm(x[0], x[1], x[2], 1e-5f, {x[3], x[4]});
  });
  row("layer_norm", "layer_norm_modulated_alone", {{3, 2, 2, 9}, {3, 9}, {3, 9}}, [](const In& x) {
    return layer_norm(x[0], {}, {}, 1e-6f, {x[1], x[2]});
  });
  row("layer_norm", "layer_norm_beside", {{2, 3, 17}, {17}, {17}}, [](const In& x) {
    const Tensor y = layer_norm(x[0], x[1], x[2], 1e-5f);
    return y + square(x[0]);  // whose gradient is there first
  });
  row("rms_norm", "rms_norm", {{3, 5, 17}, {17}}, [](const In& x) { return rms_norm(x[0], x[1], 1e-5f); });
  row("rms_norm", "rms_norm_plain", {{5, 9}}, [](const In& x) { return rms_norm(x[0], {}, 1e-5f); });
  row("rms_norm", "rms_norm_modulated", {{2, 3, 17}, {17}, {2, 17}, {2, 17}}, [](const In& x) {
    return rms_norm(x[0], x[1], 1e-5f, {x[2], x[3]});
  });
  row("rms_norm", "rms_norm_scaled", {{2, 3, 7}, {2, 7}}, [](const In& x) {
    return rms_norm(x[0], {}, 1e-5f, {x[1], {}});
  });
  row("rms_norm", "rms_norm_beside", {{2, 3, 17}, {17}}, [](const In& x) {
    const Tensor y = rms_norm(x[0], x[1], 1e-5f);
    return y + square(x[0]);
  });
  row("softmax", "softmax", {{3, 5, 17}}, [](const In& x) { return softmax(x[0]); });

  row("attention", "attention", {{2, 5, 3, 8}, {2, 7, 3, 8}, {2, 7, 3, 8}},
      [](const In& x) { return attention(x[0], x[1], x[2]); });
  row("attention", "attention_causal", {{1, 9, 2, 5}, {1, 9, 2, 5}, {1, 9, 2, 5}},
      [](const In& x) { return attention(x[0], x[1], x[2], true, 0.3f); });

  row("attention", "attention_grouped", {{2, 5, 6, 8}, {2, 7, 2, 8}, {2, 7, 2, 8}}, [](const In& x) {
    return attention(x[0], x[1], x[2], ranges({0, 3, 0, 7, 1, 7, 4, 7, 5, 7, 0, 0, 0, 2, 1, 3, 3, 3, 3, 4}, {2, 5, 2}));
  });
  row("attention", "attention_one_query", {{2, 1, 4, 5}, {2, 6, 2, 5}, {2, 6, 2, 5}}, [](const In& x) {
    return attention(x[0], x[1], x[2], ranges({0, 6, 2, 3}, {2, 1, 2}), 0.7f);
  });
  row("self_attention", "self_attention", {{2, 5, 3 * 3 * 4}}, [](const In& x) { return self_attention(x[0], 3); });
  row("self_attention", "self_attention_causal", {{1, 6, 3 * 2 * 5}},
      [](const In& x) { return self_attention(x[0], 2, true, 0.3f); });
  row("cross_attention", "cross_attention", {{2, 5, 3 * 4}, {2, 7, 2 * 3 * 4}},
      [](const In& x) { return cross_attention(x[0], x[1], 3); });

  row("rope", "rope_neighbours", {{2, 5, 3, 14}}, [](const In& x) {
    return rope(x[0], angles({5, 7}, 0), angles({5, 7}, 1), RopePairs::neighbours);
  });
  row("rope", "rope_halves", {{2, 5, 3, 6}}, [](const In& x) {
    return rope(x[0], angles({2, 5, 3}, 0), angles({2, 5, 3}, 1), RopePairs::halves);
  });
  row("rope", "rope_of_some_heads", {{2, 5, 3, 6}}, [](const In& x) {
    return rope(x[0], angles({5, 3}, 0), angles({5, 3}, 1), RopePairs::halves, 2);
  });
  row("rope", "rope_in_place", {{2, 5, 3, 6}}, [](const In& x) {
    const Tensor y = rope(square(x[0]), angles({5, 3}, 0), angles({5, 3}, 1), RopePairs::halves, 2);
    return y + square(y);
  });

  row("embedding", "embedding", {{9, 5}}, [](const In& x) { return embedding(x[0], ids({3, 0, 8, 3})); });
  row("cross_entropy", "cross_entropy", {{2, 4, 37}}, [](const In& x) {
    return cross_entropy(x[0], TokenTargets::mean(ids({3, 36, -100, 0, 3, 7, -1, 20}), 37, memory()));
  });
  row("linear_cross_entropy", "linear_cross_entropy", {{2, 4, 5}, {19, 5}}, [](const In& x) {
    return linear_cross_entropy(x[0], x[1], TokenTargets::mean(ids({3, 18, -100, 0, 3, 7, -1, 11}), 19, memory()), 3);
  });
  row("mse_loss", "mse_loss", {{3, 5}}, [](const In& x) {
    return mse_loss(x[0], zeros({3, 5}, DType::f32, memory()));
  });

  row("reshape", "reshape", {{3, 4, 5}}, [](const In& x) { return reshape(x[0], {2, 6, -1}); });
  row("permute", "permute", {{3, 4, 5}}, [](const In& x) { return permute(x[0], {2, 0, 1}); });
  row("permute", "heads", {{2, 5, 12}}, [](const In& x) { return merge_heads(transpose(heads(x[0], 3), 1, 3)); });
  row("slice", "slice", {{3, 7, 5}}, [](const In& x) { return slice(x[0], 1, 2, 6); });
  row("split", "split", {{3, 9, 5}}, [](const In& x) {
    const std::vector<Tensor> parts = split(x[0], 1, {4, 3, 2});
    return square(parts[0]) * sum(parts[2]);
  });
  row("split", "split_in_place", {{2, 4, 8, 6}}, [](const In& x) {  // gradients of parts are made within the whole
    const std::vector<Tensor> parts = split(square(x[0]), 2, {4, 2, 2});
    const auto turned = [](const Tensor& part) {
      return rope(part, angles({4, 3}, 0), angles({4, 3}, 1), RopePairs::halves);
    };
    const Tensor seen = ranges({0, 1, 0, 2, 0, 3, 0, 4, 0, 2, 0, 2, 2, 4, 2, 4}, {2, 4, 2});
    const Tensor y = attention(turned(parts[0]), turned(parts[1]), parts[2], seen);
    return y + turned(parts[0]) + sum(rms_norm(parts[2], {}, 1e-5f));
  });
  row("cat", "cat", {{3, 2, 5}, {3, 4, 5}, {3, 1, 5}}, [](const In& x) { return cat({x[0], x[1], x[2]}, 1); });
  row("stacked", "stacked", {{2, 5}, {3, 5}}, [](const In& x) {
    return stacked(cat({x[0].detached(), x[1].detached()}, 0), {x[0], x[1]});
  });
  row("contiguous", "contiguous", {{3, 5}}, [](const In& x) { return contiguous(transpose(x[0], 0, 1)); });
  row("expand", "expand", {{3, 1, 5}}, [](const In& x) { return expand(x[0], {2, 3, 4, 5}); });
  row("checkpoint", "checkpoint", {{3, 5}, {4, 5}}, [](const In& x) {
    return checkpoint([](const Tensor& a, const Tensor& w) { return silu(linear(a, w)); }, x[0], x[1]);
  });
  row("checkpoint", "checkpoint_that_ends_with_a_linear", {{3, 7}, {7, 7}}, [](const In& x) {
    const auto block = [](const Tensor& a, const Tensor& w) { return linear(silu(a), w, {}, a, /*ends_block=*/true); };
    return checkpoint(block, x[0], x[1]);
  });
  row("checkpoint", "checkpoint_that_ends_with_a_lora", {{3, 7}, {2, 7}, {7, 2}}, [](const In& x) {
    static const Tensor w = constant({7, 7});
    const auto block = [](const Tensor& a, const Tensor& down, const Tensor& up) {
      return lora_linear(silu(a), w, {}, Lora::of(down, up, 0.5f), a, /*ends_block=*/true);
    };
    return checkpoint(block, x[0], x[1], x[2]);
  });
  row("arrival of weights", "arrival_of_weights", {{3, 5}}, [](const In& x) {
    static const auto stream = [] {
      auto one = std::make_shared<BlockStream>(memory(), std::vector<size_t>{BlockStream::rounded_up(4)}, 1);
      one->room(0, {1}, DType::f32);
      one->keep(0, /*has_values=*/false);
      return one;
    }();
    return with_arrival(stream, 0, silu(x[0]));
  });
  return rows;
}

}  // namespace

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> rows = make_cases();
  return rows;
}

}  // namespace wick::test
