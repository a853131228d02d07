// Attention on tensor cores by mma.sync, for 16-bit heads of up to 128 features, from 8.0 on (after Dao,
// "FlashAttention-2", 2023). Scores stay in registers between the two products; tiles of the other side come by
// asynchronous copies while the ones before are multiplied.
#include <algorithm>

#include "wick/backend/cuda/attention/kernels.h"
#include "wick/backend/cuda/attention/sm80.cuh"
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/map/rows.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

// ---- forward: a block has 128 queries, a warp 32, and walks the keys by 64

constexpr int kM = 2, kQueries = 16 * kM * kWarps, kKeyTile = 64;

template <class T, int kD>
__global__ __launch_bounds__(kThreads) void forward_by_mma(const __grid_constant__ AttentionForward<T> a) {
  extern __shared__ uint4 memory[];
  T* const q = reinterpret_cast<T*>(memory);
  T *const k = q + kQueries * kPitch<kD>, *const v = k + kKeyTile * kPitch<kD>;
  const AttentionShape& s = a.shape;
  const int tiles = ceil_div(s.queries, kQueries), head = int(blockIdx.x) % a.all_heads;
  const int first = (tiles - 1 - int(blockIdx.x) / a.all_heads) * kQueries;  // causal: the longest first
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, row = first + warp * 16 * kM;
  const T *const keys = a.k.at(head, s.heads), *const values = a.v.at(head, s.heads);
  load_tile<kQueries, kD>(q, a.q.at(head, s.heads), a.q.token, first, s.queries, s.features);
  load_tile<kKeyTile, kD>(k, keys, a.k.token, 0, s.keys, s.features);
  copy_async_commit();

  float sum[kM][kD / 8][4] = {};
  SumsOfTile rows[kM];
  const float scale2 = s.scale * kLog2E;
  const int end = s.causal ? min(s.keys, first + kQueries) : s.keys;
  for (int start = 0; start < end; start += kKeyTile) {
    copy_async_wait<0>();
    __syncthreads();
    load_tile<kKeyTile, kD>(v, values, a.v.token, start, s.keys, s.features);
    copy_async_commit();
    float scores[kM][kKeyTile / 8][4];
    multiply_rows<kD>(scores, q + warp * 16 * kM * kPitch<kD>, k, lane);
    const bool mask = masked<false>(s, row, 16 * kM, start, kKeyTile);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float shrink[2];
      exponentials(scores[m], rows[m].of, shrink, scale2, s, {row + 16 * m + lane / 4, start + lane % 4 * 2}, mask);
      rescale(sum[m], shrink);
    }
    copy_async_wait<0>();
    __syncthreads();
    if (start + kKeyTile < end) load_tile<kKeyTile, kD>(k, keys, a.k.token, start + kKeyTile, s.keys, s.features);
    copy_async_commit();
    add_product<kD>(sum, scores, v, lane);
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    float inverse[2];
    finish_rows(inverse, rows[m].of, a.lse + int64_t(head) * s.queries, row + 16 * m, s, lane);
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
};

template <bool kKeys, int kD, class T>
__device__ __forceinline__ void backward_side(BackwardShared<T, kD>& shared, const AttentionBackward<T>& a) {
  constexpr int kN = kOther<kD>;
  const AttentionShape& s = a.shape;
  const BackwardPart part = backward_part<kKeys>(a, int(blockIdx.x), kOwn, kN);
  const int tokens = kKeys ? s.keys : s.queries, others = kKeys ? s.queries : s.keys;
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int first = part.tile * kOwn, row = first + warp * 16;
  const HeadsOf<const T>&own = kKeys ? a.k : a.q, &own_partner = kKeys ? a.v : a.dy;
  const HeadsOf<const T>&other = kKeys ? a.q : a.k, &other_partner = kKeys ? a.dy : a.v;
  const T *const from = other.at(part.head, s.heads), *const partner_from = other_partner.at(part.head, s.heads);
  const float *const lse = a.lse + int64_t(part.head) * s.queries, *const delta =
                                                                       a.delta + int64_t(part.head) * s.queries;

  const auto load_other = [&](int tile) {
    if (tile < part.end) {
      load_tile<kN, kD>(shared.other[tile % 2][0], from, other.token, tile * kN, others, s.features);
      load_tile<kN, kD>(shared.other[tile % 2][1], partner_from, other_partner.token, tile * kN, others, s.features);
    }
    copy_async_commit();
  };
  // Statistics of a tile of queries: a thread's one value, on its way while the tile before is multiplied.
  float statistic = 0;
  const auto load_statistic = [&](int tile) {
    const int at = tile * kN + thread % kN;
    if (thread < kN)
      statistic = saved_lse(lse, at, at < s.queries);
    else if (thread < 2 * kN)
      statistic = at < s.queries ? delta[at] : 0;
  };
  const auto keep_statistic = [&](int tile) {
    if (thread < 2 * kN) (thread < kN ? shared.lse : shared.delta)[tile % 2][thread % kN] = statistic;
  };

  load_tile<kOwn, kD>(shared.own[0], own.at(part.head, s.heads), own.token, first, tokens, s.features);
  load_tile<kOwn, kD>(shared.own[1], own_partner.at(part.head, s.heads), own_partner.token, first, tokens, s.features);
  load_other(part.begin);
  RowStatistics of_rows;
  if constexpr (kKeys) {
    load_statistic(part.begin);
    keep_statistic(part.begin);
    load_statistic(part.begin + 1);
  } else {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = row + lane / 4 + 8 * r;
      of_rows.lse[r] = saved_lse(lse, token, token < tokens);
      of_rows.delta[r] = token < tokens ? delta[token] : 0;
    }
  }

  float grad[1][kD / 8][4] = {}, grad_partner[1][kD / 8][4] = {};
  const int offset = warp * 16 * kPitch<kD>;
  for (int tile = part.begin; tile < part.end; ++tile) {
    copy_async_wait<0>();
    __syncthreads();
    load_other(tile + 1);
    if constexpr (kKeys) {
      keep_statistic(tile + 1);
      load_statistic(tile + 2);
    }
    const T *const x = shared.other[tile % 2][0], *const x_partner = shared.other[tile % 2][1];
    const Place place{row + lane / 4, tile * kN + lane % 4 * 2};
    const bool mask = masked<kKeys>(s, row, 16, tile * kN, kN);
    const auto in_between = [&](auto& p, auto& dp, const auto& statistics) {
      probabilities<kKeys>(p, statistics, s.scale * kLog2E, s, place, mask);
      score_gradients<kKeys>(dp, p, statistics);
    };
    float p[1][kN / 8][4], dp[1][kN / 8][4];
    multiply_rows<kD>(p, shared.own[0] + offset, x, lane);
    multiply_rows<kD>(dp, shared.own[1] + offset, x_partner, lane);
    if constexpr (kKeys) {
      in_between(p[0], dp[0], ColumnStatistics{shared.lse[tile % 2], shared.delta[tile % 2], lane % 4 * 2});
      add_product<kD>(grad_partner, p, x_partner, lane);
    } else {
      in_between(p[0], dp[0], of_rows);
    }
    add_product<kD>(grad, dp, x, lane);
  }
  copy_async_wait<0>();
  __syncthreads();
  store_gradients<kKeys, T, kD>(a, part, shared.own[0] + offset, grad[0], grad_partner[0], row, lane);
}

template <class T, int kD>
__global__ __launch_bounds__(kThreads, 2) void backward_by_mma(const __grid_constant__ AttentionBackward<T> a) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<BackwardShared<T, kD>*>(memory);
  if (int(blockIdx.x) < a.key_blocks)
    backward_side<true>(shared, a);
  else
    backward_side<false>(shared, a);
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
      const float4 x = *reinterpret_cast<const float4*>(from + 4 * k * kAddThreads);
      sum[k] = {sum[k].x + x.x, sum[k].y + x.y, sum[k].z + x.z, sum[k].w + x.w};
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
    launch("attention_add_partials", cuda.stream(), {blocks, dim3(kAddThreads), 0, 1, cuda.capability() >= 90},
           add_partials<T>, HeadsOf<T>(dk), HeadsOf<T>(dv), partial, splits, scale, heads, all_heads, keys, features);
  };
  any.dtype == DType::bf16 ? add(Type<bf16>()) : add(Type<f16>());
}

void attention_packed_delta(CudaBackend& cuda, View delta, View dy, View y) {
  const int rows = int(delta.numel());
  constexpr int kBlock = kDeltaRows * kDeltaThreads / kDeltaLanes;
  const auto run = [&]<class T>(Type<T>) {
    launch("attention_delta", cuda.stream(), {dim3(unsigned(ceil_div(rows, kBlock))), dim3(kDeltaThreads)},
           packed_row_products<T>, delta.as<float>(), HeadsOf<const T>(dy), HeadsOf<const T>(y), int(y.shape[2]),
           int(y.shape[1]), int(y.shape[3]), rows);
  };
  y.dtype == DType::bf16 ? run(Type<bf16>()) : run(Type<f16>());
}

void attention_by_mma(CudaBackend& cuda, View y, View lse, View q, View k, View v, float scale, bool causal) {
  dispatch_heads(q, [&]<class T, int kD>(Type<T>, std::integral_constant<int, kD>) {
    const AttentionForward<T> arguments(y, lse, q, k, v, scale, causal);
    const int64_t blocks = ceil_div(q.shape[1], kQueries) * arguments.all_heads;
    constexpr size_t kBytes = (kQueries + 2 * kKeyTile) * kPitch<kD> * sizeof(T);
    launch("attention", cuda.stream(), {dim3(unsigned(blocks)), dim3(kThreads), kBytes}, forward_by_mma<T, kD>,
           arguments);
  });
}

void attention_by_mma_backward(CudaBackend& cuda, View dq, View dk, View dv, View dy, View lse, View delta, View q,
                               View k, View v, float scale, bool causal) {
  dispatch_heads(q, [&]<class T, int kD>(Type<T>, std::integral_constant<int, kD>) {
    const AttentionBackwardCall<T> call(cuda, dq, dk, dv, dy, lse, delta, q, k, v, scale, causal, kOwn, kOther<kD>,
                                        2 * cuda.multiprocessors());
    if (call.blocks() == 0) return;
    launch("attention_backward", cuda.stream(),
           {dim3(unsigned(call.blocks())), dim3(kThreads), sizeof(BackwardShared<T, kD>)}, backward_by_mma<T, kD>,
           call.arguments());
    call.finish();
  });
}

}  // namespace wick
