// What the kernels for language models share: which keys a query sees, and which heads read the same ones.
#pragma once

#include "wick/backend/cuda/attention/fragments.cuh"
#include "wick/backend/cuda/device/integers.h"

namespace wick {

// Heads of one batch entry: `heads` of queries, `heads / shared` of keys and values.
struct RangedShape {
  int heads, shared, queries, keys, features;
  float scale;
  bool causal;
  const int2* ranges;  // [B, T], or null
  int entries;

  __device__ __forceinline__ int key_heads() const { return heads / shared; }
  // Keys first <= s < last of a query; of the last one beyond it.
  __device__ __forceinline__ int2 seen(int entry, int query) const {
    const int t = min(query, queries - 1);
    if (ranges) return ranges[int64_t(entry) * queries + t];
    return {0, causal ? min(t + 1, keys) : keys};
  }
};
inline RangedShape ranged_shape(const View& q, const View& k, float scale, bool causal, const View& ranges) {
  return {int(q.shape[2]), int(q.shape[2] / k.shape[2]), int(q.shape[1]), int(k.shape[1]), int(q.shape[3]), scale,
          causal,          ranges.as<const int2>(),      int(q.shape[0])};
}

// The ranges of a lane's two rows, or, where queries are columns, of all columns in shared memory.
struct RowLimits {
  int2 of[2];
  __device__ __forceinline__ int2 at(int, int i) const { return of[i / 2]; }
};
struct ColumnLimits {
  const int2* of;
  int column;  // 2 (lane % 4)
  __device__ __forceinline__ int2 at(int j, int i) const { return of[column + 8 * j + i % 2]; }
};

// Scores (or probabilities) that are not seen become `value`. `place` counts keys and queries; kKeys: rows are keys.
template <bool kKeys, int kFragments, class Limits>
__device__ __forceinline__ void hide(float (&s)[kFragments][4], const Limits& limits, Place place, float value) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = kKeys ? place.row + i / 2 * 8 : place.column + 8 * j + i % 2;
      const int2 seen = limits.at(j, i);
      if (key < seen.x || key >= seen.y) s[j][i] = value;
    }
}

// Whether queries whose first and last range are given, and all between, see keys `from` to `from + count` wholly.
__device__ __forceinline__ bool sees_all(int2 first, int2 last, int from, int count) {
  return last.x <= from && first.y >= from + count;
}

// ---- backward

// Blocks below `key_blocks` make dk and dv of some keys: they walk the queries that see them, of one head after the
// other of those that share them. The others make dq of some queries. Where keys are few, `splits` blocks share a walk
// and leave f32 partial sums.
template <class T>
struct RangedBackward {
  HeadsOf<const T> q, k, v, dy;
  HeadsOf<T> dq, dk, dv;
  const float *lse, *delta;  // [B, H, T]
  float* partial;            // [splits, 2, B, H / shared, S, D]
  RangedShape shape;
  int splits, key_blocks;
};

// The first query of an entry for which `f` of its range holds, given that it holds for all after it; all warps search
// alike, 32 queries at a time.
template <class F>
__device__ __forceinline__ int first_query(const RangedShape& s, int entry, const F& f) {
  const int lane = int(threadIdx.x) % 32;
  int low = 0, high = s.queries;  // it is one of low .. high
  while (low < high) {
    const int step = (high - low + 31) / 32, at = low + lane * step;
    const bool holds = at >= high || f(s.seen(entry, at));
    const int before = __popc(__ballot_sync(0xffffffffu, !holds));  // these lanes, from the first on, are before it
    if (before == 0) break;
    high = min(high, low + before * step);
    low += (before - 1) * step + 1;
  }
  return low;
}

// What a block walks: steps begin .. end, `tiles` of them for each head from `head` on, at tokens from `origin`.
struct BackwardWalk {
  int own_head, own_tile, split;
  int entry, head, origin, last;  // of the other side; tokens from `last` on are not seen
  int tiles, begin, end;
};
template <bool kKeys, class T>
__device__ __forceinline__ BackwardWalk walk_of(const RangedBackward<T>& a, int index, int own, int other) {
  const RangedShape& s = a.shape;
  BackwardWalk w;
  if constexpr (kKeys) {
    const int heads = s.entries * s.key_heads(), of_tile = heads * a.splits;
    w.split = index % a.splits;
    w.own_head = index % of_tile / a.splits;
    w.own_tile = index / of_tile;
    w.entry = w.own_head / s.key_heads();
    w.head = w.own_head * s.shared;
    const int first = w.own_tile * own, last = min(first + own, s.keys);
    w.origin = first_query(s, w.entry, [=](int2 seen) { return seen.y > first; });
    w.last = first_query(s, w.entry, [=](int2 seen) { return seen.x >= last; });
    w.tiles = ceil_div(max(w.last - w.origin, 0), other);
    const int all = w.tiles * s.shared, share = ceil_div(all, a.splits);
    w.begin = min(w.split * share, all);
    w.end = min(w.begin + share, all);
  } else {
    const int heads = s.entries * s.heads, tiles = ceil_div(s.queries, own);
    w.split = 0;
    w.own_head = (index - a.key_blocks) % heads;
    w.own_tile = tiles - 1 - (index - a.key_blocks) / heads;
    w.entry = w.own_head / s.heads;
    w.head = w.own_head / s.shared;
    w.origin = s.seen(w.entry, w.own_tile * own).x;
    w.last = s.seen(w.entry, w.own_tile * own + own - 1).y;
    w.begin = 0;
    w.end = w.tiles = ceil_div(max(w.last - w.origin, 0), other);
  }
  return w;
}

// Where a warp's two sums go: dk and dv, or dq and nothing.
template <bool kKeys, class T, int kD>
__device__ __forceinline__ void store_gradients(const RangedBackward<T>& a, const BackwardWalk& w, T* staging,
                                                const float (&grad)[kD / 8][4], const float (&grad_partner)[kD / 8][4],
                                                int first, int lane) {
  const RangedShape& s = a.shape;
  const int tokens = kKeys ? s.keys : s.queries, heads = kKeys ? s.key_heads() : s.heads;
  if (kKeys && a.splits > 1) {
    const int64_t head_size = int64_t(s.keys) * s.features, side = int64_t(s.entries) * heads * head_size;
    float* const to = a.partial + 2 * w.split * side + w.own_head * head_size;
    if (a.dk.data) store_partial<kD>(grad, to, first, tokens, s.features, lane);
    if (a.dv.data) store_partial<kD>(grad_partner, to + side, first, tokens, s.features, lane);
    return;
  }
  const HeadsOf<T>& target = kKeys ? a.dk : a.dq;
  if (target.data)
    store_rows<T, kD>(staging, grad, s.scale, s.scale, target.at(w.own_head, heads), target.token, first, tokens,
                      s.features, lane);
  if (kKeys && a.dv.data)
    store_rows<T, kD>(staging, grad_partner, 1, 1, a.dv.at(w.own_head, heads), a.dv.token, first, tokens, s.features,
                      lane);
}

// The arguments of one launch, as AttentionBackwardCall (attention_device.cuh) has them for plain attention.
template <class T>
class RangedBackwardCall {
 public:
  RangedBackwardCall(CudaBackend& cuda, const View& dq, const View& dk, const View& dv, const View& dy, const View& lse,
                     const View& delta, const View& q, const View& k, const View& v, const RangedShape& s, int own,
                     int other, int room)
      : cuda_(cuda), dk_(dk), dv_(dv) {
    const int key_heads = s.entries * int(k.shape[2]), key_tiles = ceil_div(s.keys, own);
    const bool keys_wanted = dk || dv;
    constexpr int kShare = 4;  // tiles of queries that are worth a partial sum
    const int walk = s.shared * ceil_div(s.queries, other);
    const int splits = std::clamp(room / (key_heads * key_tiles), 1, ceil_div(walk, kShare));
    if (keys_wanted && splits > 1) partial_.emplace(cuda, size_t(2 * splits) * size_t(k.numel()) * sizeof(float));
    a_ = {HeadsOf<const T>(q),
          HeadsOf<const T>(k),
          HeadsOf<const T>(v),
          HeadsOf<const T>(dy),
          HeadsOf<T>(dq),
          HeadsOf<T>(dk),
          HeadsOf<T>(dv),
          lse.as<float>(),
          delta.as<float>(),
          partial_ ? partial_->template as<float>() : nullptr,
          s,
          splits,
          keys_wanted ? key_heads * key_tiles * splits : 0};
    blocks_ = a_.key_blocks + (dq ? s.entries * s.heads * ceil_div(s.queries, own) : 0);
  }
  const RangedBackward<T>& arguments() const { return a_; }
  int blocks() const { return blocks_; }
  void finish() const {
    if (partial_) attention_add_partials(cuda_, dk_, dv_, a_.partial, a_.splits, a_.shape.scale);
  }

 private:
  CudaBackend& cuda_;
  View dk_, dv_;
  std::optional<Scratch> partial_;
  RangedBackward<T> a_;
  int blocks_;
};

}  // namespace wick
