// Attention on tensor cores by mma.sync, for 16-bit heads of up to 128 features, from 8.0 on (after Dao,
// "FlashAttention-2", 2023). Scores stay in registers between the two products; tiles of the other side come by
// asynchronous copies while the ones before are multiplied.
#include <algorithm>

#include "wick/backend/cuda/attention/backward.cuh"
#include "wick/backend/cuda/attention/kernels.h"
#include "wick/backend/cuda/attention/sm80.cuh"
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/map/rows.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

// ---- forward: a block has 128 queries, a warp 32, and walks the keys by 64

constexpr int kM = 2, kQueries = 16 * kM * kWarps, kKeyTile = 64;

template <class T, int kD, bool kRanged>
__global__ __launch_bounds__(kThreads) void forward_by_mma(const __grid_constant__ AttentionForward<T> a) {
  extern __shared__ uint4 memory[];
  T* const q = reinterpret_cast<T*>(memory);
  T *const k = q + kQueries * kPitch<kD>, *const v = k + kKeyTile * kPitch<kD>;
  const AttentionProblem& s = a.shape;
  const int tiles = ceil_div(s.queries, kQueries), head = int(blockIdx.x) % s.all_heads;
  const int first = (tiles - 1 - int(blockIdx.x) / s.all_heads) * kQueries;  // the last ones see most
  const int entry = head / s.heads, key_head = kRanged ? head / s.shared : head;
  const int key_heads = kRanged ? s.key_heads : s.heads;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, row = first + warp * 16 * kM;
  const T *const keys = a.k.at(key_head, key_heads), *const values = a.v.at(key_head, key_heads);
  const int begin = kRanged ? s.seen(entry, first).x : 0;
  const int end = kRanged ? s.seen(entry, first + kQueries - 1).y : s.causal ? min(s.keys, first + kQueries) : s.keys;
  const int reach = kRanged ? end : s.keys;  // keys beyond become zeros
  load_tile<kQueries, kD>(q, a.q.at(head, s.heads), a.q.token, first, s.queries, s.features);
  load_tile<kKeyTile, kD>(k, keys, a.k.token, begin, reach, s.features);
  copy_async_commit();
  int2 first_seen, last_seen;  // by this warp's rows
  if constexpr (kRanged) first_seen = s.seen(entry, row), last_seen = s.seen(entry, row + 16 * kM - 1);

  float sum[kM][kD / 8][4] = {};
  SumsOfTile rows[kM];
  for (int start = begin; start < end; start += kKeyTile) {
    copy_async_wait<0>();
    __syncthreads();
    load_tile<kKeyTile, kD>(v, values, a.v.token, start, reach, s.features);
    copy_async_commit();
    float scores[kM][kKeyTile / 8][4];
    multiply_rows<kD>(scores, q + warp * 16 * kM * kPitch<kD>, k, lane);
    bool mask;
    if constexpr (kRanged)
      mask = !sees_all(first_seen, last_seen, start, kKeyTile);
    else
      mask = masked<false>(s, row, 16 * kM, start, kKeyTile);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float shrink[2];
      const Place place{row + 16 * m + lane / 4, start + lane % 4 * 2};
      if (kRanged && mask)  // ranges are read again where they are asked for: registers are scarcer
        hide<false>(scores[m], RowLimits{{s.seen(entry, place.row), s.seen(entry, place.row + 8)}}, place, -INFINITY);
      exponentials<kRanged>(scores[m], rows[m].of, shrink, s.scale * kLog2E, s, place, !kRanged && mask);
      rescale(sum[m], shrink);
    }
    copy_async_wait<0>();
    __syncthreads();
    if (start + kKeyTile < end) load_tile<kKeyTile, kD>(k, keys, a.k.token, start + kKeyTile, reach, s.features);
    copy_async_commit();
    add_product<kD>(sum, scores, v, lane);
  }
  if constexpr (kRanged) {  // where nothing is seen, queries may still arrive: their place is where rows are stored
                            // from
    copy_async_wait<0>();
    __syncthreads();
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    float inverse[2];
    finish_rows(inverse, rows[m].of, a.lse + int64_t(head) * s.queries, row + 16 * m, s, lane);
    store_warp_rows<T, kD>(q + (warp * kM + m) * 16 * kPitch<kD>, sum[m], inverse[0], inverse[1], a.y.at(head, s.heads),
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
  int2 seen[2][kOther<kD>];  // with ranges
};

// The gradients of one side by a block: of its keys and values (kKeys), or of its queries.
template <bool kKeys, bool kRanged, class T, int kD>
class BackwardSide {
 public:
  __device__ __forceinline__ BackwardSide(BackwardShared<T, kD>& shared, const AttentionBackward<T>& a)
      : shared_(shared), a_(a), s_(a.shape), w_(walk_of<kKeys, kRanged>(a, int(blockIdx.x), kOwn, kN)) {}

  __device__ __forceinline__ void run() {
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, row = w_.own_tile * kOwn + warp * 16;
    load_own();
    load_other(w_.begin);
    RowStatistics of_rows;
    RowLimits limits;
    if constexpr (kKeys) {
      load_statistic(w_.begin);
      keep_statistic(w_.begin);
      load_statistic(w_.begin + 1);
    } else {
      const int upper = row + lane / 4;
      of_rows = row_statistics(a_, w_.own_head, upper);
      if constexpr (kRanged) limits = {{s_.seen(w_.entry, upper), s_.seen(w_.entry, upper + 8)}};
    }
    int2 first_seen, last_seen;  // by this warp's queries
    if constexpr (kRanged) first_seen = s_.seen(w_.entry, row), last_seen = s_.seen(w_.entry, row + 15);

    float grad[1][kD / 8][4] = {}, grad_partner[1][kD / 8][4] = {};
    const int offset = warp * 16 * kPitch<kD>;
    for (int step = w_.begin; step < w_.end; ++step) {
      copy_async_wait<0>();
      __syncthreads();
      load_other(step + 1);
      if constexpr (kKeys) {
        keep_statistic(step + 1);
        load_statistic(step + 2);
      }
      const T *const x = shared_.other[step % 2][0], *const x_partner = shared_.other[step % 2][1];
      const int token = token_at(step);
      const Place place{row + lane / 4, token + lane % 4 * 2};
      float p[1][kN / 8][4], dp[1][kN / 8][4];
      multiply_rows<kD>(p, shared_.own[0] + offset, x, lane);
      multiply_rows<kD>(dp, shared_.own[1] + offset, x_partner, lane);
      if constexpr (kKeys) {
        const int2* const seen = shared_.seen[step % 2];
        const bool hidden = kRanged && !sees_all(seen[0], seen[kN - 1], row, 16);
        take_gradients(p[0], dp[0], ColumnStatistics{shared_.lse[step % 2], shared_.delta[step % 2], lane % 4 * 2},
                       ColumnLimits{seen, lane % 4 * 2}, place, row, hidden);
        add_product<kD>(grad_partner, p, x_partner, lane);
      } else {
        const bool hidden = kRanged && !sees_all(first_seen, last_seen, token, kN);
        take_gradients(p[0], dp[0], of_rows, limits, place, row, hidden);
      }
      add_product<kD>(grad, dp, x, lane);
    }
    copy_async_wait<0>();
    __syncthreads();
    store_gradients<kKeys, T, kD>(a_, w_, shared_.own[0] + offset, grad[0], grad_partner[0], row, lane);
  }

 private:
  static constexpr int kN = kOther<kD>;

  __device__ __forceinline__ int token_at(int step) const { return w_.template token_at<kKeys, kRanged>(step, kN); }
  __device__ __forceinline__ int head_at(int step) const { return w_.template head_at<kKeys, kRanged>(step); }

  // Keys that no query of the entry reaches may hold anything, and become zeros.
  __device__ __forceinline__ void load_own() {
    const HeadsOf<const T>&own = kKeys ? a_.k : a_.q, &partner = kKeys ? a_.v : a_.dy;
    const int heads = kKeys && kRanged ? s_.key_heads : s_.heads, first = w_.own_tile * kOwn;
    const int begin = kKeys && kRanged ? s_.seen(w_.entry, 0).x : 0;
    const int end = !kKeys ? s_.queries : kRanged ? s_.seen(w_.entry, s_.queries - 1).y : s_.keys;
    load_tile<kOwn, kD>(shared_.own[0], own.at(w_.own_head, heads), own.token, first, end, s_.features, begin);
    load_tile<kOwn, kD>(shared_.own[1], partner.at(w_.own_head, heads), partner.token, first, end, s_.features, begin);
  }
  __device__ __forceinline__ void load_other(int step) {
    if (step < w_.end) {
      const HeadsOf<const T>&other = kKeys ? a_.q : a_.k, &partner = kKeys ? a_.dy : a_.v;
      const int heads = !kKeys && kRanged ? s_.key_heads : s_.heads, head = head_at(step), token = token_at(step);
      load_tile<kN, kD>(shared_.other[step % 2][0], other.at(head, heads), other.token, token, w_.last, s_.features);
      load_tile<kN, kD>(shared_.other[step % 2][1], partner.at(head, heads), partner.token, token, w_.last,
                        s_.features);
    }
    copy_async_commit();
  }
  // Statistics of a tile of queries: a thread's one value, on its way while the tile before is multiplied; and ranges.
  __device__ __forceinline__ void load_statistic(int step) {
    if (kRanged && step >= w_.end) return;
    const int thread = int(threadIdx.x), query = token_at(step) + thread % kN;
    const int64_t at = int64_t(head_at(step)) * s_.queries + query;
    if (thread < kN) {
      statistic_ = saved_lse(a_.lse, at, query < w_.last);
      if constexpr (kRanged) seen_ = s_.seen(w_.entry, min(query, w_.last - 1));
    } else if (thread < 2 * kN) {
      statistic_ = query < w_.last ? a_.delta[at] : 0;
    }
  }
  __device__ __forceinline__ void keep_statistic(int step) {
    const int thread = int(threadIdx.x);
    if (kRanged && thread < kN) shared_.seen[step % 2][thread] = seen_;
    if (thread < 2 * kN) (thread < kN ? shared_.lse : shared_.delta)[step % 2][thread % kN] = statistic_;
  }
  // Scores p to probabilities, and dp to the gradients of scores.
  template <class Statistics, class Limits>
  __device__ __forceinline__ void take_gradients(float (&p)[kN / 8][4], float (&dp)[kN / 8][4],
                                                 const Statistics& statistics, const Limits& limits, Place place,
                                                 int row, bool hidden) const {
    const bool mask = !kRanged && masked<kKeys>(s_, row, 16, place.column - int(threadIdx.x) % 4 * 2, kN);
    probabilities<kKeys>(p, statistics, s_.scale * kLog2E, s_, place, mask);
    if (hidden) hide<kKeys>(p, limits, place, 0);
    score_gradients<kKeys>(dp, p, statistics);
  }

  BackwardShared<T, kD>& shared_;
  const AttentionBackward<T>& a_;
  const AttentionProblem& s_;
  const BackwardWalk w_;
  float statistic_ = 0;
  int2 seen_ = {0, 0};
};

template <class T, int kD, bool kRanged>
__global__ __launch_bounds__(kThreads, 2) void backward_by_mma(const __grid_constant__ AttentionBackward<T> a) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<BackwardShared<T, kD>*>(memory);
  if (int(blockIdx.x) < a.key_blocks)
    BackwardSide<true, kRanged, T, kD>(shared, a).run();
  else
    BackwardSide<false, kRanged, T, kD>(shared, a).run();
}

// ---- partial sums

constexpr int kAddThreads = 128, kAdded = 4;  // a thread's fours of features, on their way together

// z = 0 for dk, 1 for dv.
template <class T>
__global__ __launch_bounds__(kAddThreads) void add_partials(HeadsOf<T> dk, HeadsOf<T> dv, const float* partial,
                                                            int splits, float scale, int heads, int all_heads, int keys,
                                                            int features) {
  const HeadsOf<T>& target = blockIdx.z ? dv : dk;
  wait_for_previous();
  const int head_size = keys * features, head = int(blockIdx.y);
  const int first = 4 * int(blockIdx.x * kAdded * kAddThreads + threadIdx.x);
  if (!target.data) return;
  const float* from = partial + (int64_t(blockIdx.z) * all_heads + head) * head_size + first;
  float4 sum[kAdded] = {};
#pragma unroll 2
  for (int i = 0; i < splits; ++i, from += int64_t(2) * all_heads * head_size) {
#pragma unroll
    for (int k = 0; k < kAdded; ++k) {
      if (first + 4 * k * kAddThreads >= head_size) continue;
      add(sum[k], *reinterpret_cast<const float4*>(from + 4 * k * kAddThreads));
    }
  }
  const float factor = blockIdx.z ? 1 : scale;
#pragma unroll
  for (int k = 0; k < kAdded; ++k) {
    const int at = first + 4 * k * kAddThreads;
    if (at >= head_size) continue;
    *reinterpret_cast<uint2*>(target.at(head, heads) + at / features * target.token + at % features) = {
        pack<T>(sum[k].x * factor, sum[k].y * factor), pack<T>(sum[k].z * factor, sum[k].w * factor)};
  }
}

// ---- delta

constexpr int kDeltaThreads = 256, kDeltaLanes = 16;  // of a row
constexpr int kDeltaRows = 4;                         // of a thread, on their way together

// The heads of a token follow each other, as they do in memory.
template <class T>
__global__ __launch_bounds__(kDeltaThreads) void packed_row_products(float* delta, HeadsOf<const T> dy,
                                                                     HeadsOf<const T> y, int heads, int tokens,
                                                                     int features, int rows) {
  constexpr int kStep = kDeltaThreads / kDeltaLanes;
  launch_dependents();
  const int first = int(blockIdx.x) * kDeltaRows * kStep + int(threadIdx.x) / kDeltaLanes;
  const int lane = int(threadIdx.x) % kDeltaLanes;
  PackWords<T, 8> u[kDeltaRows] = {}, v[kDeltaRows] = {};
#pragma unroll
  for (int r = 0; r < kDeltaRows; ++r) {
    const int row = first + r * kStep, all_token = row / heads, entry = all_token / tokens;
    if (row >= rows || 8 * lane >= features) break;
    const auto place = [&](const HeadsOf<const T>& x) {
      return x.at(entry * heads + row - all_token * heads, heads) + (all_token - entry * tokens) * x.token + 8 * lane;
    };
    u[r] = PackWords<T, 8>::load(place(dy));
    v[r] = PackWords<T, 8>::load(place(y));
  }
#pragma unroll
  for (int r = 0; r < kDeltaRows; ++r) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = fmaf(element(u[r].pack(), j), element(v[r].pack(), j), sum);
#pragma unroll
    for (int other = kDeltaLanes / 2; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    const int row = first + r * kStep, all_token = row / heads, entry = all_token / tokens;
    if (lane == 0 && row < rows)
      delta[(entry * heads + row - all_token * heads) * tokens + all_token - entry * tokens] = sum;
  }
}

}  // namespace

void attention_add_partials(CudaBackend& cuda, View dk, View dv, const float* partial, int splits, float scale) {
  const View& any = dk ? dk : dv;
  const int heads = int(any.shape[2]), all_heads = int(any.shape[0]) * heads, keys = int(any.shape[1]),
            features = int(any.shape[3]);
  constexpr int kBlock = 4 * kAdded * kAddThreads;
  const dim3 blocks(unsigned(ceil_div(keys * features, kBlock)), unsigned(all_heads), 2);
  const auto add = [&]<class T>(Type<T>) {
    launch("attention_add_partials", cuda.stream(), overlapped(cuda, blocks, dim3(kAddThreads)), add_partials<T>,
           HeadsOf<T>(dk), HeadsOf<T>(dv), partial, splits, scale, heads, all_heads, keys, features);
  };
  dispatch_16bit(any.dtype, add);
}

void attention_packed_delta(CudaBackend& cuda, View delta, View dy, View y) {
  const int rows = int(delta.numel());
  constexpr int kBlock = kDeltaRows * kDeltaThreads / kDeltaLanes;
  const auto run = [&]<class T>(Type<T>) {
    launch("attention_delta", cuda.stream(), {unsigned(ceil_div(rows, kBlock)), kDeltaThreads}, packed_row_products<T>,
           delta.as<float>(), HeadsOf<const T>(dy), HeadsOf<const T>(y), int(y.shape[2]), int(y.shape[1]),
           int(y.shape[3]), rows);
  };
  dispatch_16bit(y.dtype, run);
}

void attention_by_mma(CudaBackend& cuda, const AttentionArgs& a) {
  dispatch_attention(a, [&]<class T, int kD>(Type<T>, std::integral_constant<int, kD>, auto ranged) {
    const int64_t blocks = ceil_div(a.q.shape[1], kQueries) * a.q.shape[0] * a.q.shape[2];
    constexpr size_t kBytes = (kQueries + 2 * kKeyTile) * kPitch<kD> * sizeof(T);
    launch("attention", cuda.stream(), {dim3(unsigned(blocks)), dim3(kThreads), kBytes}, forward_by_mma<T, kD, ranged>,
           AttentionForward<T>(a));
  });
}

void attention_by_mma_backward(CudaBackend& cuda, const AttentionArgs& a, const AttentionGradients& g, View delta) {
  dispatch_attention(a, [&]<class T, int kD>(Type<T>, std::integral_constant<int, kD>, auto ranged) {
    run_backward<T>(cuda, a, g, delta, kOwn, kOther<kD>, 2 * cuda.multiprocessors(), [&](const auto& call, int blocks) {
      launch("attention_backward", cuda.stream(), {unsigned(blocks), kThreads, sizeof(BackwardShared<T, kD>)},
             backward_by_mma<T, kD, ranged>, call);
    });
  });
}

}  // namespace wick
