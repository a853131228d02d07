// The arguments of attention's tensor-core kernels.
#pragma once

#include "wick/backend/backend.h"
#include "wick/backend/cuda/runtime/dispatch.cuh"

namespace wick {

constexpr float kLog2E = 1.4426950408889634f;

// Heads that share keys and ranges of keys (backend.h) are for kernels with kRanged; the others may ask `causal` alone.
struct AttentionProblem {
  int entries, heads, key_heads, shared, all_heads;  // `shared` heads of an entry read the same key head
  int queries, keys, features;
  float scale;
  bool causal;
  const int2* ranges;  // [B, T], or null

  // Keys first <= s < second, which a query sees; those of the last query for all beyond it.
  __device__ __forceinline__ int2 seen(int entry, int query) const {
    const int t = min(query, queries - 1);
    if (ranges) return ranges[int64_t(entry) * queries + t];
    return {0, causal ? min(t + 1, keys) : keys};
  }
};
inline AttentionProblem attention_problem(const AttentionArgs& a) {
  const Shape &q = a.q.shape, &k = a.k.shape;
  return {int(q[0]), int(q[2]), int(k[2]), int(q[2] / k[2]), int(q[0] * q[2]),         int(q[1]),
          int(k[1]), int(q[3]), a.scale,   a.causal,         a.ranges.as<const int2>()};
}
inline bool is_ranged(const AttentionArgs& a) { return a.ranges || a.q.shape[2] != a.k.shape[2]; }

// A [B, T, H, D] view in device code; no data where an output is not wanted.
template <class T>
struct HeadsOf {
  T* data;
  int64_t batch, token, head;  // strides

  HeadsOf() = default;
  explicit HeadsOf(const View& v) : HeadsOf() {
    if (v) *this = HeadsOf(v.as<T>(), v.stride[0], v.stride[1], v.stride[2]);
  }
  __device__ T* at(int head_of_all, int heads) const {
    return data + head_of_all / heads * batch + head_of_all % heads * head;
  }
  __device__ __forceinline__ T* at(int64_t entry, int64_t t, int64_t h) const {
    return data + entry * batch + t * token + h * head;
  }

 private:
  HeadsOf(T* data, int64_t batch, int64_t token, int64_t head) : data(data), batch(batch), token(token), head(head) {}
};

template <class T>
struct AttentionForward {
  HeadsOf<const T> q, k, v;
  HeadsOf<T> y;
  float* lse;  // [B, H, T]
  AttentionProblem shape;

  explicit AttentionForward(const AttentionArgs& a)
      : q(a.q), k(a.k), v(a.v), y(a.y), lse(a.lse.as<float>()), shape(attention_problem(a)) {}
};

// Calls f with the element type and the width that heads are padded to.
template <class F>
void dispatch_heads(const View& q, const F& f) {
  dispatch_16bit(q.dtype, [&](auto type) {
    q.shape[3] <= 64 ? f(type, std::integral_constant<int, 64>()) : f(type, std::integral_constant<int, 128>());
  });
}
// The same, and whether kernels have to look at ranges or heads that share keys.
template <class F>
void dispatch_attention(const AttentionArgs& a, const F& f) {
  dispatch_heads(a.q, [&](auto type, auto width) {
    is_ranged(a) ? f(type, width, std::true_type()) : f(type, width, std::false_type());
  });
}

}  // namespace wick
