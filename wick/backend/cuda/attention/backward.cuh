// The work of attention's backward pass, as blocks share it.
//
// Gradients of both sides come from one launch: parts below `key_blocks` make dk and dv of some keys and walk the
// queries that see them, of one head after the other of those that share the keys. The parts behind them, which are
// shorter, make dq of some queries and walk the keys. Every sum has one writer and a fixed order. Where keys are few,
// `splits` blocks share a walk and leave f32 partial sums.
#pragma once

#include <algorithm>

#include "wick/backend/cuda/attention/fragments.cuh"
#include "wick/backend/cuda/attention/kernels.h"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/runtime/dense.h"

namespace wick {

template <class T>
struct AttentionBackward {
  HeadsOf<const T> q, k, v, dy;
  HeadsOf<T> dq, dk, dv;
  const float *lse, *delta;  // [B, H, T]
  float* partial;            // [splits, 2, B, key heads, S, D]
  AttentionProblem shape;
  int splits, key_blocks;
};

// The first query of an entry for which `f` of its range holds, given that it holds for all after it; all warps search
// alike, 32 queries at a time.
template <class F>
__device__ __forceinline__ int first_query(const AttentionProblem& s, int entry, const F& f) {
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

// The walk of a block over the other side: steps begin .. end, `tiles` of them for each head from `head` on, at tokens
// from `origin`.
struct BackwardWalk {
  int own_head, own_tile, split;
  int entry, head, origin, last;  // of the other side; tokens from `last` on are not seen
  int tiles, begin, end;

  template <bool kKeys, bool kRanged>
  __device__ __forceinline__ int head_at(int step) const {
    return head + (kKeys && kRanged ? step / tiles : 0);
  }
  template <bool kKeys, bool kRanged>
  __device__ __forceinline__ int token_at(int step, int tile) const {
    return kRanged ? origin + (kKeys ? step % tiles : step) * tile : step * tile;
  }
};
template <bool kKeys, bool kRanged, class T>
__device__ __forceinline__ BackwardWalk walk_of(const AttentionBackward<T>& a, int index, int own, int other) {
  const AttentionProblem& s = a.shape;
  BackwardWalk w{};
  if constexpr (kKeys) {
    // The first keys, which causal attention shows to most queries, go first.
    const int of_tile = s.entries * s.key_heads * a.splits;
    w.split = index % a.splits;
    w.own_head = index % of_tile / a.splits;
    w.own_tile = index / of_tile;
    int first = 0, all;
    if constexpr (kRanged) {
      const int begin = w.own_tile * own, end = min(begin + own, s.keys);
      w.entry = w.own_head / s.key_heads;
      w.head = w.own_head * s.shared;
      w.origin = first_query(s, w.entry, [=](int2 seen) { return seen.y > begin; });
      w.last = first_query(s, w.entry, [=](int2 seen) { return seen.x >= end; });
      w.tiles = ceil_div(max(w.last - w.origin, 0), other);
      all = w.tiles * s.shared;
    } else {
      w.head = w.own_head;
      w.last = s.queries;
      all = ceil_div(s.queries, other);
      first = s.causal ? min(w.own_tile * own / other, all) : 0;
    }
    const int share = ceil_div(all - first, a.splits);
    w.begin = min(first + w.split * share, all);
    w.end = min(w.begin + share, all);
  } else {
    const int heads = s.all_heads, tiles = ceil_div(s.queries, own);
    w.own_head = (index - a.key_blocks) % heads;
    w.own_tile = tiles - 1 - (index - a.key_blocks) / heads;
    if constexpr (kRanged) {
      w.entry = w.own_head / s.heads;
      w.head = w.own_head / s.shared;
      w.origin = s.seen(w.entry, w.own_tile * own).x;
      w.last = s.seen(w.entry, w.own_tile * own + own - 1).y;
      w.end = ceil_div(max(w.last - w.origin, 0), other);
    } else {
      w.head = w.own_head;
      w.last = s.keys;
      w.end = ceil_div(s.causal ? min(s.keys, (w.own_tile + 1) * own) : s.keys, other);
    }
  }
  return w;
}

// Statistics of a lane's rows of a head's queries, the upper one of which is `query`.
template <class T>
__device__ __forceinline__ RowStatistics row_statistics(const AttentionBackward<T>& a, int head, int query) {
  RowStatistics of;
#pragma unroll
  for (int r = 0; r < 2; ++r, query += 8) {
    const int64_t at = int64_t(head) * a.shape.queries + query;
    of.lse[r] = saved_lse(a.lse, at, query < a.shape.queries);
    of.delta[r] = query < a.shape.queries ? a.delta[at] : 0;
  }
  return of;
}

// Where a warp's two sums go: dk and dv, or dq and nothing.
template <bool kKeys, class T, int kD>
__device__ __forceinline__ void store_gradients(const AttentionBackward<T>& a, const BackwardWalk& w, T* staging,
                                                const float (&grad)[kD / 8][4], const float (&grad_partner)[kD / 8][4],
                                                int first, int lane) {
  const AttentionProblem& s = a.shape;
  const int tokens = kKeys ? s.keys : s.queries, heads = kKeys ? s.key_heads : s.heads;
  if (kKeys && a.splits > 1) {
    const int64_t head_size = int64_t(s.keys) * s.features, side = int64_t(s.entries) * heads * head_size;
    float* const to = a.partial + 2 * w.split * side + w.own_head * head_size;
    if (a.dk.data) store_partial<kD>(grad, to, first, tokens, s.features, lane);
    if (a.dv.data) store_partial<kD>(grad_partner, to + side, first, tokens, s.features, lane);
    return;
  }
  const HeadsOf<T>& target = kKeys ? a.dk : a.dq;
  if (target.data)
    store_warp_rows<T, kD>(staging, grad, s.scale, s.scale, target.at(w.own_head, heads), target.token, first, tokens,
                           s.features, lane);
  if (kKeys && a.dv.data)
    store_warp_rows<T, kD>(staging, grad_partner, 1, 1, a.dv.at(w.own_head, heads), a.dv.token, first, tokens,
                           s.features, lane);
}

// ---- the call

// dk = scale * the sum over splits of partial, and dv without the factor. Follows the kernel that made them.
void attention_add_partials(CudaBackend& cuda, View dk, View dv, const float* partial, int splits, float scale);

// Calls launch_blocks(arguments, number of blocks), if there is anything to do, with tiles of `own` tokens of a block's
// side and `other` of the other, on a device with room for `room` blocks at a time; and what has to follow.
template <class T, class LaunchBlocks>
void run_backward(CudaBackend& cuda, const AttentionArgs& a, const AttentionGradients& g, const View& delta, int own,
                  int other, int room, const LaunchBlocks& launch_blocks) {
  const AttentionProblem s = attention_problem(a);
  const int key_parts = s.entries * s.key_heads * ceil_div(s.keys, own), walk = s.shared * ceil_div(s.queries, other);
  constexpr int kShare = 4;  // tiles of queries that are worth a partial sum
  const int splits = std::clamp(room / key_parts, 1, ceil_div(walk, kShare));
  const bool keys_wanted = g.dk || g.dv, in_parts = keys_wanted && splits > 1;
  const Scratch partial =
      in_parts ? Scratch(cuda, size_t(2 * splits) * size_t(a.k.numel()) * sizeof(float)) : Scratch();
  const AttentionBackward<T> arguments{.q = HeadsOf<const T>(a.q),
                                       .k = HeadsOf<const T>(a.k),
                                       .v = HeadsOf<const T>(a.v),
                                       .dy = HeadsOf<const T>(g.dy),
                                       .dq = HeadsOf<T>(g.dq),
                                       .dk = HeadsOf<T>(g.dk),
                                       .dv = HeadsOf<T>(g.dv),
                                       .lse = a.lse.as<float>(),
                                       .delta = delta.as<float>(),
                                       .partial = partial.as<float>(),
                                       .shape = s,
                                       .splits = splits,
                                       .key_blocks = keys_wanted ? key_parts * splits : 0};
  const int blocks = arguments.key_blocks + (g.dq ? s.entries * s.heads * ceil_div(s.queries, own) : 0);
  if (blocks == 0) return;
  launch_blocks(arguments, blocks);
  if (in_parts) attention_add_partials(cuda, g.dk, g.dv, arguments.partial, splits, s.scale);
}

}  // namespace wick
