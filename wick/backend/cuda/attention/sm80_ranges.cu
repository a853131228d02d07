// Attention of language models by mma.sync: as attention_mma.cu, with tiles that begin and end where the ranges do.
// Keys and values beyond what a tile of queries sees are never read: they become zeros, since they may hold anything.
#include <algorithm>

#include "wick/backend/cuda/attention/ranges.h"
#include "wick/backend/cuda/attention/sm80.cuh"
#include "wick/backend/cuda/attention/sm80_ranges.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

// ---- forward: a block has 128 queries of a head, a warp 32, and walks the keys that they see by 64

constexpr int kM = 2, kQueries = 16 * kM * kWarps, kKeyTile = 64;

template <class T>
struct Forward {
  HeadsOf<const T> q, k, v;
  HeadsOf<T> y;
  float* lse;  // [B, H, T]
  RangedShape shape;
};

template <class T, int kD>
__global__ __launch_bounds__(kThreads) void forward_of_ranges(const __grid_constant__ Forward<T> a) {
  extern __shared__ uint4 memory[];
  T* const q = reinterpret_cast<T*>(memory);
  T *const k = q + kQueries * kPitch<kD>, *const v = k + kKeyTile * kPitch<kD>;
  const RangedShape& s = a.shape;
  const int all_heads = s.entries * s.heads, tiles = ceil_div(s.queries, kQueries);
  const int head = int(blockIdx.x) % all_heads, entry = head / s.heads, key_head = head / s.shared;
  const int first = (tiles - 1 - int(blockIdx.x) / all_heads) * kQueries;  // the last ones see most
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, row = first + warp * 16 * kM;
  const T *const keys = a.k.at(key_head, s.key_heads()), *const values = a.v.at(key_head, s.key_heads());
  const int begin = s.seen(entry, first).x, end = s.seen(entry, first + kQueries - 1).y;
  load_tile<kQueries, kD>(q, a.q.at(head, s.heads), a.q.token, first, s.queries, s.features);
  load_tile<kKeyTile, kD>(k, keys, a.k.token, begin, end, s.features);
  copy_async_commit();

  const int2 first_seen = s.seen(entry, row), last_seen = s.seen(entry, row + 16 * kM - 1);

  float sum[kM][kD / 8][4] = {};
  SumsOfTile rows[kM];
  AttentionShape plain{};  // without a mask of its own
  plain.queries = s.queries;
  plain.scale = s.scale;
  const float scale2 = s.scale * kLog2E;
  for (int start = begin; start < end; start += kKeyTile) {
    copy_async_wait<0>();
    __syncthreads();
    load_tile<kKeyTile, kD>(v, values, a.v.token, start, end, s.features);
    copy_async_commit();
    float scores[kM][kKeyTile / 8][4];
    multiply_rows<kD>(scores, q + warp * 16 * kM * kPitch<kD>, k, lane);
    const bool mask = !sees_all(first_seen, last_seen, start, kKeyTile);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float shrink[2];
      const Place place{row + 16 * m + lane / 4, start + lane % 4 * 2};
      if (mask)  // ranges are read again where they are asked for: registers are scarcer
        hide<false>(scores[m], RowLimits{{s.seen(entry, place.row), s.seen(entry, place.row + 8)}}, place, -INFINITY);
      exponentials<true>(scores[m], rows[m].of, shrink, scale2, plain, place, false);
      rescale(sum[m], shrink);
    }
    copy_async_wait<0>();
    __syncthreads();
    if (start + kKeyTile < end) load_tile<kKeyTile, kD>(k, keys, a.k.token, start + kKeyTile, end, s.features);
    copy_async_commit();
    add_product<kD>(sum, scores, v, lane);
  }
  copy_async_wait<0>();  // of the queries, where nothing is seen: their place is where the rows are stored from
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    float inverse[2];
    finish_rows(inverse, rows[m].of, a.lse + int64_t(head) * s.queries, row + 16 * m, plain, lane);
    store_rows<T, kD>(q + (warp * kM + m) * 16 * kPitch<kD>, sum[m], inverse[0], inverse[1], a.y.at(head, s.heads),
                      a.y.token, row + 16 * m, s.queries, s.features, lane);
  }
}

// ---- backward: a block has 64 tokens of its side, a warp 16

constexpr int kOwn = 16 * kWarps;
template <int kD>
constexpr int kOther = kD == 64 ? 64 : 32;  // tokens of the other side at a time

template <class T, int kD>
struct BackwardShared {
  T own[2][kOwn * kPitch<kD>];
  T other[2][2][kOther<kD> * kPitch<kD>];  // two stages
  float lse[2][kOther<kD>], delta[2][kOther<kD>];
  int2 seen[2][kOther<kD>];
};

template <bool kKeys, int kD, class T>
__device__ __forceinline__ void backward_side(BackwardShared<T, kD>& shared, const RangedBackward<T>& a) {
  constexpr int kN = kOther<kD>;
  const RangedShape& s = a.shape;
  const BackwardWalk w = walk_of<kKeys>(a, int(blockIdx.x), kOwn, kN);
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int first = w.own_tile * kOwn, row = first + warp * 16;
  const int own_heads = kKeys ? s.key_heads() : s.heads, other_heads = kKeys ? s.heads : s.key_heads();
  const HeadsOf<const T>&own = kKeys ? a.k : a.q, &own_partner = kKeys ? a.v : a.dy;
  const HeadsOf<const T>&other = kKeys ? a.q : a.k, &other_partner = kKeys ? a.dy : a.v;
  const auto head_of = [&](int step) { return w.head + (kKeys ? step / w.tiles : 0); };
  const auto token_of = [&](int step) { return w.origin + (kKeys ? step % w.tiles : step) * kN; };

  const auto load_other = [&](int step) {
    if (step < w.end) {
      const int head = head_of(step), token = token_of(step);
      load_tile<kN, kD>(shared.other[step % 2][0], other.at(head, other_heads), other.token, token, w.last, s.features);
      load_tile<kN, kD>(shared.other[step % 2][1], other_partner.at(head, other_heads), other_partner.token, token,
                        w.last, s.features);
    }
    copy_async_commit();
  };
  // Statistics of a tile of queries: a thread's one value, on its way while the tile before is multiplied; and ranges.
  float statistic = 0;
  int2 seen = {0, 0};
  const auto load_statistic = [&](int step) {
    if (step >= w.end) return;
    const int query = token_of(step) + thread % kN;
    const int64_t at = int64_t(head_of(step)) * s.queries + query;
    if (thread < kN) {
      statistic = saved_lse(a.lse, at, query < w.last);
      seen = s.seen(w.entry, min(query, w.last - 1));
    } else if (thread < 2 * kN) {
      statistic = query < w.last ? a.delta[at] : 0;
    }
  };
  const auto keep_statistic = [&](int step) {
    if (thread < kN) shared.seen[step % 2][thread] = seen;
    if (thread < 2 * kN) (thread < kN ? shared.lse : shared.delta)[step % 2][thread % kN] = statistic;
  };

  // Of keys, those that any query of the entry reaches.
  const int own_begin = kKeys ? s.seen(w.entry, 0).x : 0,
            own_end = kKeys ? s.seen(w.entry, s.queries - 1).y : s.queries;
  load_tile<kOwn, kD>(shared.own[0], own.at(w.own_head, own_heads), own.token, first, own_end, s.features, own_begin);
  load_tile<kOwn, kD>(shared.own[1], own_partner.at(w.own_head, own_heads), own_partner.token, first, own_end,
                      s.features, own_begin);
  load_other(w.begin);
  RowStatistics of_rows;
  RowLimits limits;
  if constexpr (kKeys) {
    load_statistic(w.begin);
    keep_statistic(w.begin);
    load_statistic(w.begin + 1);
  } else {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = row + lane / 4 + 8 * r;
      const int64_t at = int64_t(w.own_head) * s.queries + query;
      of_rows.lse[r] = saved_lse(a.lse, at, query < s.queries);
      of_rows.delta[r] = query < s.queries ? a.delta[at] : 0;
      limits.of[r] = s.seen(w.entry, query);
    }
  }
  const int2 first_seen = s.seen(w.entry, row), last_seen = s.seen(w.entry, row + 15);

  float grad[1][kD / 8][4] = {}, grad_partner[1][kD / 8][4] = {};
  const int offset = warp * 16 * kPitch<kD>;
  for (int step = w.begin; step < w.end; ++step) {
    copy_async_wait<0>();
    __syncthreads();
    load_other(step + 1);
    if constexpr (kKeys) {
      keep_statistic(step + 1);
      load_statistic(step + 2);
    }
    const T *const x = shared.other[step % 2][0], *const x_partner = shared.other[step % 2][1];
    const Place place{row + lane / 4, token_of(step) + lane % 4 * 2};
    const auto in_between = [&](auto& p, auto& dp, const auto& statistics, const auto& seen_by, bool mask) {
      probabilities<kKeys>(p, statistics, s.scale * kLog2E, AttentionShape{}, place, false);
      if (mask) hide<kKeys>(p, seen_by, place, 0);
      score_gradients<kKeys>(dp, p, statistics);
    };
    float p[1][kN / 8][4], dp[1][kN / 8][4];
    multiply_rows<kD>(p, shared.own[0] + offset, x, lane);
    multiply_rows<kD>(dp, shared.own[1] + offset, x_partner, lane);
    if constexpr (kKeys) {
      const int2* const columns = shared.seen[step % 2];
      in_between(p[0], dp[0], ColumnStatistics{shared.lse[step % 2], shared.delta[step % 2], lane % 4 * 2},
                 ColumnLimits{columns, lane % 4 * 2}, !sees_all(columns[0], columns[kN - 1], row, 16));
      add_product<kD>(grad_partner, p, x_partner, lane);
    } else {
      in_between(p[0], dp[0], of_rows, limits, !sees_all(first_seen, last_seen, token_of(step), kN));
    }
    add_product<kD>(grad, dp, x, lane);
  }
  copy_async_wait<0>();
  __syncthreads();
  store_gradients<kKeys, T, kD>(a, w, shared.own[0] + offset, grad[0], grad_partner[0], row, lane);
}

template <class T, int kD>
__global__ __launch_bounds__(kThreads, 2) void backward_of_ranges(const __grid_constant__ RangedBackward<T> a) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<BackwardShared<T, kD>*>(memory);
  if (int(blockIdx.x) < a.key_blocks)
    backward_side<true>(shared, a);
  else
    backward_side<false>(shared, a);
}

}  // namespace

void attention_of_ranges(CudaBackend& cuda, View y, View lse, View q, View k, View v, float scale, bool causal,
                         View ranges) {
  dispatch_heads(q, [&]<class T, int kD>(Type<T>, std::integral_constant<int, kD>) {
    const Forward<T> arguments{HeadsOf<const T>(q), HeadsOf<const T>(k), HeadsOf<const T>(v),
                               HeadsOf<T>(y),       lse.as<float>(),     ranged_shape(q, k, scale, causal, ranges)};
    const int64_t blocks = ceil_div(q.shape[1], kQueries) * q.shape[0] * q.shape[2];
    constexpr size_t kBytes = (kQueries + 2 * kKeyTile) * kPitch<kD> * sizeof(T);
    launch("attention", cuda.stream(), {dim3(unsigned(blocks)), dim3(kThreads), kBytes}, forward_of_ranges<T, kD>,
           arguments);
  });
}

void attention_of_ranges_backward(CudaBackend& cuda, View dq, View dk, View dv, View dy, View lse, View delta, View q,
                                  View k, View v, float scale, bool causal, View ranges) {
  dispatch_heads(q, [&]<class T, int kD>(Type<T>, std::integral_constant<int, kD>) {
    const RangedBackwardCall<T> call(cuda, dq, dk, dv, dy, lse, delta, q, k, v,
                                     ranged_shape(q, k, scale, causal, ranges), kOwn, kOther<kD>,
                                     2 * cuda.multiprocessors());
    if (call.blocks() == 0) return;
    launch("attention_backward", cuda.stream(),
           {dim3(unsigned(call.blocks())), dim3(kThreads), sizeof(BackwardShared<T, kD>)}, backward_of_ranges<T, kD>,
           call.arguments());
    call.finish();
  });
}

}  // namespace wick
