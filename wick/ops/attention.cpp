#include "wick/ops/attention.h"

#include <cmath>

#include "wick/ops/shape.h"

namespace wick {
namespace {

const Op kAttention("attention");

// The contract wants the features of a head side by side.
Tensor dense_heads(const Tensor& x) { return x.dim(3) == 1 || x.stride()[3] == 1 ? x : contiguous(x); }

}  // namespace

Tensor attention(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, bool causal, float scale) {
  check(q_in.rank() == 4 && k_in.rank() == 4 && k_in.shape() == v_in.shape() && q_in.dim(0) == k_in.dim(0) &&
            q_in.dim(2) == k_in.dim(2) && q_in.dim(3) == k_in.dim(3),
        "attention: q {}, k {}, v {} do not fit [B, T, H, D], [B, S, H, D], [B, S, H, D]", q_in.shape(), k_in.shape(),
        v_in.shape());
  check(!causal || q_in.dim(1) == k_in.dim(1), "attention: a causal mask needs as many keys as queries, got {} and {}",
        k_in.dim(1), q_in.dim(1));
  check(k_in.dim(1) > 0 && q_in.dim(3) > 0, "attention: there is nothing to attend to in {}", k_in.shape());
  const Tensor q = dense_heads(q_in), k = dense_heads(k_in), v = dense_heads(v_in);
  if (scale == 0) scale = 1.0f / std::sqrt(float(q.dim(3)));

  Tensor y = Tensor::empty(q.shape(), q.dtype(), q.memory());
  Tensor lse = Tensor::empty({q.dim(0), q.dim(2), q.dim(1)}, DType::f32, q.memory());
  q.backend().attention(y, lse, q, k, v, scale, causal);
  return record(kAttention, y, {q, k, v}, [=](const Tensor& dy_in, Grads& grads) {
    const Tensor dy = dense_heads(dy_in);
    const Tensor dq = q.tracked() ? Input(q).empty() : Tensor(), dk = k.tracked() ? Input(k).empty() : Tensor(),
                 dv = v.tracked() ? Input(v).empty() : Tensor();
    dy.backend().attention_backward(dq, dk, dv, dy, y, lse, q, k, v, scale, causal);
    grads.add(q, dq);
    grads.add(k, dk);
    grads.add(v, dv);
  });
}

}  // namespace wick
