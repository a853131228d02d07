#include "wick/ops/attention.h"

#include <cmath>

#include "wick/ops/shape.h"

namespace wick {
namespace {

const Op kAttention("attention"), kSelfAttention("self_attention"), kCrossAttention("cross_attention");

// The contract wants the features of a head side by side.
Tensor dense_heads(const Tensor& x) { return x.dim(-1) == 1 || x.stride().back() == 1 ? x : contiguous(x); }

// Number `which` of `count` tensors [B, T, H, D] that lie side by side in x [B, T, count H D].
Tensor heads_of(const Tensor& x, int64_t heads, int count = 1, int which = 0) {
  const int64_t width = x.dim(2) / count, features = width / heads;
  const Shape& stride = x.stride();
  return x.window({x.dim(0), x.dim(1), heads, features}, {stride[0], stride[1], features * stride[2], stride[2]},
                  which * width * stride[2]);
}

void check_heads(const char* op, const Tensor& x, int64_t heads, int count) {
  check(x.rank() == 3 && heads > 0 && x.dim(2) % (count * heads) == 0,
        "{}: the width of {} does not split into {} times {} heads", op, x.shape(), count, heads);
}

// Attention, computed, and the tensors that backward needs.
struct Attended {
  Tensor q, k, v, ranges;
  bool causal;
  float scale;
  Tensor y = Tensor::empty(q.shape(), q.dtype(), q.memory());
  Tensor lse = Tensor::empty({q.dim(0), q.dim(2), q.dim(1)}, DType::f32, q.memory());

  Attended(Tensor queries, Tensor keys, Tensor values, bool is_causal, float scaled_by, Tensor key_ranges = {})
      : q(std::move(queries)),
        k(std::move(keys)),
        v(std::move(values)),
        ranges(std::move(key_ranges)),
        causal(is_causal),
        scale(scaled_by) {
    check(!causal || q.dim(1) == k.dim(1), "attention: a causal mask needs as many keys as queries, got {} and {}",
          k.dim(1), q.dim(1));
    check(k.dim(1) > 0 && q.dim(3) > 0, "attention: there is nothing to attend to in {}", k.shape());
    if (scale == 0) scale = 1.0f / std::sqrt(float(q.dim(3)));
    q.backend().attention(args());
  }

  void backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dy) const {
    const Tensor dense = dense_heads(dy);
    q.backend().attention_backward(args(), {.dq = dq, .dk = dk, .dv = dv, .dy = dense});
  }
  AttentionArgs args() const {
    return {.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = scale, .causal = causal, .ranges = ranges};
  }
};

void check_ranges(const Tensor& ranges, const Tensor& q, int64_t keys) {
  const Shape shape{q.dim(0), q.dim(1), 2};
  check(ranges.shape() == shape && ranges.dtype() == DType::i32, "attention: ranges should be i32 {}, found {} {}",
        shape, name_of(ranges.dtype()), ranges.shape());
  if (!ranges.memory().on_host()) return;  // they reach a device through a checked host tensor
  check(ranges.contiguous(), "attention: ranges should be contiguous");
  for (int64_t b = 0; b < shape[0]; ++b) {
    int64_t first = 0, last = 0;  // of the query before
    for (int64_t t = 0; t < shape[1]; ++t) {
      const int32_t* bounds = ranges.data<int32_t>() + 2 * (b * shape[1] + t);
      check(first <= bounds[0] && last <= bounds[1] && bounds[0] <= bounds[1] && bounds[1] <= keys,
            "attention: query {} of entry {} sees keys [{}, {}) of {}, the query before it [{}, {})", t, b, bounds[0],
            bounds[1], keys, first, last);
      first = bounds[0], last = bounds[1];
    }
  }
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, const Tensor& ranges, float scale) {
  const Attended a(dense_heads(q.detached()), dense_heads(k.detached()), dense_heads(v.detached()), causal, scale,
                   ranges);
  return record(kAttention, a.y, {q, k, v},
                [a, q = Input(q), k = Input(k), v = Input(v)](const Tensor& dy, Grads& grads) {
                  const auto room = [&](const Input& x) { return grads.wants(x) ? x.room() : Tensor(); };
                  const Tensor dq = room(q), dk = room(k), dv = room(v);
                  a.backward(dq, dk, dv, dy);
                  grads.add(q, dq);
                  grads.add(k, dk);
                  grads.add(v, dv);
                });
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, float scale) {
  check(q.rank() == 4 && k.rank() == 4 && k.shape() == v.shape() && q.dim(0) == k.dim(0) && q.dim(2) == k.dim(2) &&
            q.dim(3) == k.dim(3),
        "attention: q {}, k {}, v {} do not fit [B, T, H, D], [B, S, H, D], [B, S, H, D]", q.shape(), k.shape(),
        v.shape());
  return attend(q, k, v, causal, {}, scale);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& ranges, float scale) {
  check(q.rank() == 4 && k.rank() == 4 && k.shape() == v.shape() && q.dim(0) == k.dim(0) && q.dim(3) == k.dim(3) &&
            k.dim(2) > 0 && q.dim(2) % k.dim(2) == 0,
        "attention: q {}, k {}, v {} do not fit [B, T, H, D], [B, S, G, D], [B, S, G, D] where G divides H", q.shape(),
        k.shape(), v.shape());
  check_ranges(ranges, q, k.dim(1));
  return attend(q, k, v, false, ranges, scale);
}

Tensor self_attention(const Tensor& qkv, int64_t heads, bool causal, float scale) {
  check_heads("self_attention", qkv, heads, 3);
  const Tensor x = dense_heads(qkv.detached());
  const Attended a(heads_of(x, heads, 3, 0), heads_of(x, heads, 3, 1), heads_of(x, heads, 3, 2), causal, scale);
  return record(kSelfAttention, merge_heads(a.y), {qkv}, [a, heads, qkv = Input(qkv)](const Tensor& dy, Grads& grads) {
    const Tensor dx = qkv.empty();
    a.backward(heads_of(dx, heads, 3, 0), heads_of(dx, heads, 3, 1), heads_of(dx, heads, 3, 2), heads_of(dy, heads));
    grads.add(qkv, dx);
  });
}

Tensor cross_attention(const Tensor& q, const Tensor& kv, int64_t heads, float scale) {
  check_heads("cross_attention", q, heads, 1);
  check_heads("cross_attention", kv, heads, 2);
  check(q.dim(0) == kv.dim(0) && 2 * q.dim(2) == kv.dim(2), "cross_attention: q {} and kv {} do not fit", q.shape(),
        kv.shape());
  const Tensor x = dense_heads(q.detached()), context = dense_heads(kv.detached());
  const Attended a(heads_of(x, heads), heads_of(context, heads, 2, 0), heads_of(context, heads, 2, 1), false, scale);
  return record(kCrossAttention, merge_heads(a.y), {q, kv},
                [a, heads, q = Input(q), kv = Input(kv)](const Tensor& dy, Grads& grads) {
                  const bool to_kv = grads.wants(kv);
                  const Tensor dq = grads.wants(q) ? q.empty() : Tensor(), dkv = to_kv ? kv.empty() : Tensor();
                  a.backward(dq ? heads_of(dq, heads) : Tensor(), to_kv ? heads_of(dkv, heads, 2, 0) : Tensor(),
                             to_kv ? heads_of(dkv, heads, 2, 1) : Tensor(), heads_of(dy, heads));
                  grads.add(q, dq);
                  grads.add(kv, dkv);
                });
}

}  // namespace wick
