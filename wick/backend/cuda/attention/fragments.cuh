// What the tensor-core kernels of attention share: how heads lie in memory, what happens to scores between two
// products, and how a warp's rows leave.
//
// Scores and sums are fragments: a warp holds 16 rows, and lane i of each eight columns the elements (i / 4, 2 (i % 4)
// + {0, 1}) and the same of the row eight below. So mma.sync and wgmma return them, and so both take them as operand a
// once they are packed to 16 bits.
#pragma once

#include <algorithm>

#include "wick/backend/cuda/attention/kernels.h"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/mma.cuh"
#include "wick/backend/cuda/runtime/dense.h"

namespace wick {

constexpr float kLog2E = 1.4426950408889634f;

struct AttentionShape {
  int heads, queries, keys, features;  // heads of one batch entry
  float scale;
  bool causal;
};
inline AttentionShape attention_shape(const View& q, const View& k, float scale, bool causal) {
  return {int(q.shape[2]), int(q.shape[1]), int(k.shape[1]), int(q.shape[3]), scale, causal};
}

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

 private:
  HeadsOf(T* data, int64_t batch, int64_t token, int64_t head) : data(data), batch(batch), token(token), head(head) {}
};

template <class T>
struct AttentionForward {
  HeadsOf<const T> q, k, v;
  HeadsOf<T> y;
  float* lse;  // [B, H, T]
  AttentionShape shape;
  int all_heads;

  AttentionForward(const View& y, const View& lse, const View& q, const View& k, const View& v, float scale,
                   bool causal)
      : q(q),
        k(k),
        v(v),
        y(y),
        lse(lse.as<float>()),
        shape(attention_shape(q, k, scale, causal)),
        all_heads(int(q.shape[0] * q.shape[2])) {}
};

// Gradients of both sides come from one launch: parts below `key_blocks` make dk and dv of some keys and walk the
// queries, the others, behind them because they are shorter, make dq of some queries and walk the keys. Every sum has
// one writer and a fixed order. Where keys are few, `splits` blocks share the queries of one tile of keys and leave f32
// partial sums.
template <class T>
struct AttentionBackward {
  HeadsOf<const T> q, k, v, dy;
  HeadsOf<T> dq, dk, dv;
  const float *lse, *delta;  // [B, H, T]
  float* partial;            // [splits, 2, B, H, S, D]
  AttentionShape shape;
  int all_heads, query_tiles, splits, key_blocks;
};

// A part of it: tiles `begin` to `end` of the other side.
struct BackwardPart {
  int head, tile, split, begin, end;
};
template <bool kKeys, class T>
__device__ __forceinline__ BackwardPart backward_part(const AttentionBackward<T>& a, int index, int own, int other) {
  const AttentionShape& s = a.shape;
  if constexpr (kKeys) {
    // The first keys, which causal attention shows to most queries, go first.
    const int of_tile = a.all_heads * a.splits, split = index % a.splits;
    const int tile = index / of_tile, all = ceil_div(s.queries, other);
    const int first = s.causal ? min(tile * own / other, all) : 0, share = ceil_div(all - first, a.splits);
    return {index % of_tile / a.splits, tile, split, min(first + split * share, all),
            min(first + (split + 1) * share, all)};
  } else {
    const int tile = a.query_tiles - 1 - (index - a.key_blocks) / a.all_heads;
    const int last = s.causal ? min(s.keys, (tile + 1) * own) : s.keys;
    return {(index - a.key_blocks) % a.all_heads, tile, 0, 0, ceil_div(last, other)};
  }
}

__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Columns 16 k to 16 k + 15 of fragments as operand a.
template <class T>
__device__ __forceinline__ void pack(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack<T>(left[0], left[1]);
  a[1] = pack<T>(left[2], left[3]);
  a[2] = pack<T>(right[0], right[1]);
  a[3] = pack<T>(right[2], right[3]);
}

// Where a lane's fragments stand among all queries and keys.
struct Place {
  int row, column;  // of its first element
};
template <bool kKeys>  // rows are keys
__device__ __forceinline__ bool visible(const AttentionShape& s, int row, int column) {
  const int query = kKeys ? column : row, key = kKeys ? row : column;
  return key < s.keys && (!s.causal || key <= query);
}
// Whether a tile of scores has to ask.
template <bool kKeys>
__device__ __forceinline__ bool masked(const AttentionShape& s, int row, int rows, int column, int columns) {
  if (kKeys) return s.causal && column < row + rows;
  return column + columns > s.keys || (s.causal && column + columns > row);
}

// ---- forward: sums are kept relative to the largest score so far

struct RowSum {  // of one row; `total` of this lane's elements alone
  float peak = -INFINITY, total = 0;
};

// Scores of a lane's two rows to exp(scale (s - peak)); what was summed before shrinks by `shrink`. With kBlind rows
// may have seen nothing so far.
template <bool kBlind = false, int kFragments>
__device__ __forceinline__ void exponentials(float (&s)[kFragments][4], RowSum (&rows)[2], float (&shrink)[2],
                                             float scale2, const AttentionShape& shape, Place place, bool mask) {
  if (mask)
#pragma unroll
    for (int j = 0; j < kFragments; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (!visible<false>(shape, place.row + i / 2 * 8, place.column + 8 * j + i % 2)) s[j][i] = -INFINITY;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float peak = rows[r].peak;
#pragma unroll
    for (int j = 0; j < kFragments; ++j)
      peak = fmaxf(peak, fmaxf(s[j][2 * r], s[j][2 * r + 1]));  // skips NaN, which the exponential brings back
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
    const float from = kBlind && peak == -INFINITY ? 0 : peak, shift = from * scale2;
    shrink[r] = fast_exp2((rows[r].peak - from) * scale2);
    float total = rows[r].total * shrink[r];
#pragma unroll
    for (int j = 0; j < kFragments; ++j)
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) total += s[j][i] = fast_exp2(fmaf(s[j][i], scale2, -shift));
    rows[r] = {peak, total};
  }
}
template <int kFragments>
__device__ __forceinline__ void rescale(float (&sum)[kFragments][4], const float (&shrink)[2]) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[j][i] *= shrink[i / 2];
}
// The factors that make sums averages, zero of rows that saw nothing; saves the log-sum-exp of a head's rows from
// `first` on.
__device__ __forceinline__ void finish_rows(float (&inverse)[2], const RowSum (&rows)[2], float* lse, int first,
                                            const AttentionShape& shape, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = rows[r].total;
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const int query = first + lane / 4 + 8 * r;
    if (lane % 4 == 0 && query < shape.queries) lse[query] = rows[r].peak * shape.scale + logf(total);
    inverse[r] = total == 0 ? 0 : 1 / total;
  }
}

// ---- backward

// The log-sum-exp in base 2 and delta of a lane's two rows, or, where queries are columns, of all columns in shared
// memory. What lies beyond the last query has infinity and zero, and so no probability.
struct RowStatistics {
  float lse[2], delta[2];
  __device__ __forceinline__ void get(float (&x)[4], const float (&of)[2]) const {
    x[0] = x[1] = of[0];
    x[2] = x[3] = of[1];
  }
  __device__ __forceinline__ void lse_at(int, float (&x)[4]) const { get(x, lse); }
  __device__ __forceinline__ void delta_at(int, float (&x)[4]) const { get(x, delta); }
};
struct ColumnStatistics {
  const float *lse, *delta;
  int column;  // 2 (lane % 4)
  __device__ __forceinline__ void get(float (&x)[4], const float* of) const {
    const float2 both = *reinterpret_cast<const float2*>(of + column);
    x[0] = x[2] = both.x;
    x[1] = x[3] = both.y;
  }
  __device__ __forceinline__ void lse_at(int j, float (&x)[4]) const { get(x, lse + 8 * j); }
  __device__ __forceinline__ void delta_at(int j, float (&x)[4]) const { get(x, delta + 8 * j); }
};

__device__ __forceinline__ float saved_lse(const float* lse, int64_t at, bool there) {
  return there ? lse[at] * kLog2E : INFINITY;
}

// Scores to probabilities.
template <bool kKeys, int kFragments, class Statistics>
__device__ __forceinline__ void probabilities(float (&s)[kFragments][4], const Statistics& statistics, float scale2,
                                              const AttentionShape& shape, Place place, bool mask) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j) {
    float lse[4];
    statistics.lse_at(j, lse);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[j][i] = fast_exp2(fmaf(s[j][i], scale2, -lse[i]));
  }
  if (!mask) return;
#pragma unroll
  for (int j = 0; j < kFragments; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (!visible<kKeys>(shape, place.row + i / 2 * 8, place.column + 8 * j + i % 2)) s[j][i] = 0;
}

// Gradients of probabilities to those of scores, without the factor `scale`. With kAnything dp may be NaN where p is 0.
template <bool kKeys, bool kAnything = false, int kFragments, class Statistics>
__device__ __forceinline__ void score_gradients(float (&dp)[kFragments][4], const float (&p)[kFragments][4],
                                                const Statistics& statistics) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j) {
    float delta[4];
    statistics.delta_at(j, delta);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float gradient = p[j][i] * (dp[j][i] - delta[i]);
      dp[j][i] = kAnything && p[j][i] == 0 ? 0 : gradient;
    }
  }
}

// A warp's 16 rows, the first of them token `first`, times a factor for each of a lane's two, by way of 16 kD elements
// of shared memory that nobody else uses.
template <class T, int kD>
__device__ __forceinline__ void store_rows(T* staging, const float (&sum)[kD / 8][4], float upper, float lower, T* to,
                                           int64_t stride, int first, int tokens, int features, int lane) {
  const int row = lane / 4;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kD / 8; ++j) {
    uint32_t* const at = reinterpret_cast<uint32_t*>(staging + row * kD + (j ^ row) * 8 + lane % 4 * 2);
    at[0] = pack<T>(sum[j][0] * upper, sum[j][1] * upper);
    at[8 * kD / 2] = pack<T>(sum[j][2] * lower, sum[j][3] * lower);
  }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 16 * kD / 8; i += 32) {
    const int r = i / (kD / 8), chunk = i % (kD / 8);
    if (first + r < tokens && chunk * 8 < features)
      *reinterpret_cast<uint4*>(to + (first + r) * stride + chunk * 8) =
          *reinterpret_cast<const uint4*>(staging + r * kD + (chunk ^ (r % 8)) * 8);
  }
}
// The same as partial sums [S, D].
template <int kD>
__device__ __forceinline__ void store_partial(const float (&sum)[kD / 8][4], float* to, int first, int tokens,
                                              int features, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = first + lane / 4 + 8 * half;
    if (token >= tokens) continue;
#pragma unroll
    for (int j = 0; j < kD / 8; ++j)
      if (8 * j < features)
        *reinterpret_cast<float2*>(to + int64_t(token) * features + 8 * j + lane % 4 * 2) = {sum[j][2 * half],
                                                                                             sum[j][2 * half + 1]};
  }
}

// Where a warp's two sums go: dk and dv, or dq and nothing.
template <bool kKeys, class T, int kD>
__device__ __forceinline__ void store_gradients(const AttentionBackward<T>& a, const BackwardPart& part, T* staging,
                                                const float (&grad)[kD / 8][4], const float (&grad_partner)[kD / 8][4],
                                                int first, int lane) {
  const AttentionShape& s = a.shape;
  const int tokens = kKeys ? s.keys : s.queries;
  if (kKeys && a.splits > 1) {
    const int64_t head_size = int64_t(s.keys) * s.features;
    float* const to = a.partial + (int64_t(2 * part.split) * a.all_heads + part.head) * head_size;
    if (a.dk.data) store_partial<kD>(grad, to, first, tokens, s.features, lane);
    if (a.dv.data) store_partial<kD>(grad_partner, to + a.all_heads * head_size, first, tokens, s.features, lane);
    return;
  }
  const HeadsOf<T>& target = kKeys ? a.dk : a.dq;
  if (target.data)
    store_rows<T, kD>(staging, grad, s.scale, s.scale, target.at(part.head, s.heads), target.token, first, tokens,
                      s.features, lane);
  if (kKeys && a.dv.data)
    store_rows<T, kD>(staging, grad_partner, 1, 1, a.dv.at(part.head, s.heads), a.dv.token, first, tokens, s.features,
                      lane);
}

// ---- the call

// dk = scale * the sum over splits of partial, and dv without the factor. Follows the kernel that made them.
void attention_add_partials(CudaBackend& cuda, View dk, View dv, const float* partial, int splits, float scale);

// The arguments of one launch with tiles of `own` tokens of a block's side and `other` of the other, on a device with
// room for `room` blocks at a time; finish() after the launch.
template <class T>
class AttentionBackwardCall {
 public:
  AttentionBackwardCall(CudaBackend& cuda, const View& dq, const View& dk, const View& dv, const View& dy,
                        const View& lse, const View& delta, const View& q, const View& k, const View& v, float scale,
                        bool causal, int own, int other, int room)
      : cuda_(cuda), dk_(dk), dv_(dv) {
    const AttentionShape s = attention_shape(q, k, scale, causal);
    const int heads = int(q.shape[0] * q.shape[2]), key_tiles = ceil_div(s.keys, own);
    const bool keys_wanted = dk || dv;
    constexpr int kShare = 4;  // tiles of queries that are worth a partial sum
    const int splits = std::clamp(room / (heads * key_tiles), 1, ceil_div(s.queries, kShare * other));
    a_ = {HeadsOf<const T>(q),
          HeadsOf<const T>(k),
          HeadsOf<const T>(v),
          HeadsOf<const T>(dy),
          HeadsOf<T>(dq),
          HeadsOf<T>(dk),
          HeadsOf<T>(dv),
          lse.as<float>(),
          delta.as<float>(),
          nullptr,
          s,
          heads,
          ceil_div(s.queries, own),
          splits,
          keys_wanted ? heads * key_tiles * splits : 0};
    if (keys_wanted && a_.splits > 1) {
      partial_.emplace(cuda, size_t(2 * a_.splits) * size_t(k.numel()) * sizeof(float));
      a_.partial = partial_->template as<float>();
    }
  }
  const AttentionBackward<T>& arguments() const { return a_; }
  int blocks() const { return a_.key_blocks + (a_.dq.data ? a_.all_heads * a_.query_tiles : 0); }
  void finish() const {
    if (partial_) attention_add_partials(cuda_, dk_, dv_, a_.partial, a_.splits, a_.shape.scale);
  }

 private:
  CudaBackend& cuda_;
  View dk_, dv_;
  AttentionBackward<T> a_{};
  std::optional<Scratch> partial_;
};

}  // namespace wick
