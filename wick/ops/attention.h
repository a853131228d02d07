// Scaled dot-product attention.
#pragma once

#include <vector>

#include "wick/autograd/tape.h"

namespace wick {

// q [B, T, H, D], k and v [B, S, H, D] -> [B, T, H, D]; scale is 1/sqrt(D) unless given. causal needs T = S.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal = false, float scale = 0);

// q [B, T, H, D], k and v [B, S, G, D] where G divides H, ranges i32 [B, T, 2]: the keys that each query sees, and how
// heads share them, are in backend.h. Ranges on the host are checked.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& ranges, float scale = 0);

// The same where one linear gave queries, keys and values side by side, qkv [B, T, 3 H D] -> [B, T, H D], or keys and
// values, q [B, T, H D] and kv [B, S, 2 H D]. They are read, and their gradients written, where they lie.
Tensor self_attention(const Tensor& qkv, int64_t heads, bool causal = false, float scale = 0);
Tensor cross_attention(const Tensor& q, const Tensor& kv, int64_t heads, float scale = 0);

// Streams of tokens that attend to each other as one sequence, each with projections and norms of its own (MMDiT, Esser
// et al., 2024).
struct AttentionStream {
  Tensor qkv;             // [B, T_i, 3 H D]
  Tensor q_norm, k_norm;  // f32 [D], or both empty: queries and keys are not normed
};
// Angles of rope() over neighbours for the whole sequence, f32 [T, D/2]; or both empty. They get no gradient.
struct Rotary {
  Tensor cos, sin;
};
// -> [B, T, H D], T the sum of all T_i, in the streams' order. Queries and keys are prepared by qk_norm_rope() of
// backend.h, in backward once more: only y and the streams are kept. `ranges` i32 [B, T, 2] as for attention(), or
// empty.
struct JointAttention {
  int64_t heads;
  Rotary rotary = {};
  Tensor ranges = {};
  float eps = 1e-6f;  // of the norms
};
Tensor joint_attention(const std::vector<AttentionStream>& streams, const JointAttention& a);

}  // namespace wick
