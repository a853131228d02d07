// Attention by tiles of 64 queries and 64 keys. 256 threads hold 4x4 values each of a tile of scores; operands lie in
// shared memory as f32, whatever their dtype is. Forward rescales its sums as the maximum of a row grows; backward
// recomputes the probabilities from the saved log-sum-exp, once for the tiles of keys (dk, dv) and once for those of
// queries (dq), so that every output has one writer and a fixed order of sums.
#include "wick/backend/cuda/attention/kernels.h"
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/numbers.cuh"
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kTile = 64;
constexpr int kThreads = 256;
constexpr int kPitch = kAttentionTileFeatures + 4;  // floats from row to row in shared memory: no bank conflicts
constexpr int kTileFloats = kTile * kPitch;

// A [B, T, H, D] view in device code.
struct Heads {
  void* data;
  DType dtype;
  int64_t batch, token, head;  // strides
  bool aligned;                // four elements may be loaded as one
};

Heads heads_of(const View& v) {
  const int64_t bytes = 4 * int64_t(size_of(v.dtype));
  const bool aligned =
      uintptr_t(v.data) % uintptr_t(bytes) == 0 && v.stride[0] % 4 == 0 && v.stride[1] % 4 == 0 && v.stride[2] % 4 == 0;
  return {v.data, v.dtype, v.stride[0], v.stride[1], v.stride[2], aligned};
}

template <class T>
__device__ __forceinline__ float4 load_four(const T* p, int n, bool whole) {
  if (whole) {
    const Pack<T, 4> four = *reinterpret_cast<const Pack<T, 4>*>(p);
    return {to_float(four.value[0]), to_float(four.value[1]), to_float(four.value[2]), to_float(four.value[3])};
  }
  return {to_float(p[0]), n > 1 ? to_float(p[1]) : 0, n > 2 ? to_float(p[2]) : 0, n > 3 ? to_float(p[3]) : 0};
}
template <class T>
__device__ __forceinline__ void store_four(T* p, int n, bool whole, const float (&x)[4]) {
  if (whole) {
    *reinterpret_cast<Pack<T, 4>*>(p) = {from_float<T>(x[0]), from_float<T>(x[1]), from_float<T>(x[2]),
                                         from_float<T>(x[3])};
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < n) p[i] = from_float<T>(x[i]);
}

// The first n of four neighbours, and zeros. The dtype is looked up here, far from the inner loops, so that one kernel
// serves all of them.
__device__ __forceinline__ float4 load_four(const Heads& h, int64_t at, int n) {
  if (n <= 0) return {0, 0, 0, 0};
  const bool whole = n >= 4 && h.aligned;
  if (h.dtype == DType::f32) return load_four(static_cast<const float*>(h.data) + at, n, whole);
  if (h.dtype == DType::bf16) return load_four(static_cast<const bf16*>(h.data) + at, n, whole);
  return load_four(static_cast<const f16*>(h.data) + at, n, whole);
}
__device__ __forceinline__ void store_four(const Heads& h, int64_t at, int n, const float (&x)[4]) {
  if (n <= 0) return;
  const bool whole = n >= 4 && h.aligned;
  if (h.dtype == DType::f32) return store_four(static_cast<float*>(h.data) + at, n, whole, x);
  if (h.dtype == DType::bf16) return store_four(static_cast<bf16*>(h.data) + at, n, whole, x);
  return store_four(static_cast<f16*>(h.data) + at, n, whole, x);
}

// A thread's place: the rows 4*ty .. 4*ty+3 of a tile; the columns tx, tx+16, tx+32, tx+48 of scores, and 4*tx ..
// 4*tx+3 of matrices with D columns.
__device__ __forceinline__ int ty() { return int(threadIdx.x) / 16; }
__device__ __forceinline__ int tx() { return int(threadIdx.x) % 16; }

// 64 tokens from `first` of one head, zeros beyond the last one and the last feature.
__device__ __forceinline__ void load_tile(float* tile, const Heads& h, int64_t base, int64_t first, int64_t tokens,
                                          int features) {
  const int column = 4 * tx();
#pragma unroll
  for (int row = ty(); row < kTile; row += kThreads / 16) {
    const int64_t token = first + row;
    *reinterpret_cast<float4*>(tile + row * kPitch + column) =
        load_four(h, base + token * h.token + column, token < tokens ? features - column : 0);
  }
}

__device__ __forceinline__ void store_tile(const Heads& h, int64_t base, int64_t first, int64_t tokens, int features,
                                           const float (&x)[4][4], const float (&scale)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t token = first + 4 * ty() + i;
    const float row[4] = {x[i][0] * scale[i], x[i][1] * scale[i], x[i][2] * scale[i], x[i][3] * scale[i]};
    if (token < tokens) store_four(h, base + token * h.token + 4 * tx(), features - 4 * tx(), row);
  }
}

// scores = a b^T of two tiles.
__device__ __forceinline__ void multiply_transposed(float (&scores)[4][4], const float* a, const float* b,
                                                    int features) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[i][j] = 0;
#pragma unroll 4
  for (int d = 0; d < features; d += 4) {
    float4 x[4], y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = *reinterpret_cast<const float4*>(a + (4 * ty() + i) * kPitch + d);
#pragma unroll
    for (int j = 0; j < 4; ++j) y[j] = *reinterpret_cast<const float4*>(b + (tx() + 16 * j) * kPitch + d);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[i][j] = fmaf(x[i].x, y[j].x, scores[i][j]);
        scores[i][j] = fmaf(x[i].y, y[j].y, scores[i][j]);
        scores[i][j] = fmaf(x[i].z, y[j].z, scores[i][j]);
        scores[i][j] = fmaf(x[i].w, y[j].w, scores[i][j]);
      }
  }
}

// sum += weights b, where weights are a tile of 64 by 64.
__device__ __forceinline__ void add_product(float (&sum)[4][4], const float* weights, const float* b) {
#pragma unroll 4
  for (int n = 0; n < kTile; n += 4) {
    float4 p[4], y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = *reinterpret_cast<const float4*>(weights + (4 * ty() + i) * kPitch + n);
#pragma unroll
    for (int m = 0; m < 4; ++m) y[m] = *reinterpret_cast<const float4*>(b + (n + m) * kPitch + 4 * tx());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float w[4] = {p[i].x, p[i].y, p[i].z, p[i].w};
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        sum[i][0] = fmaf(w[m], y[m].x, sum[i][0]);
        sum[i][1] = fmaf(w[m], y[m].y, sum[i][1]);
        sum[i][2] = fmaf(w[m], y[m].z, sum[i][2]);
        sum[i][3] = fmaf(w[m], y[m].w, sum[i][3]);
      }
    }
  }
}

__device__ __forceinline__ void store_scores(float* tile, const float (&scores)[4][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) tile[(4 * ty() + i) * kPitch + tx() + 16 * j] = scores[i][j];
}

// Over the 16 threads that share a row.
template <class Op>
__device__ __forceinline__ float row_reduce(float x) {
#pragma unroll
  for (int lane = 8; lane > 0; lane /= 2) x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}

struct Problem {
  int64_t heads, queries, keys;  // heads of one batch entry
  int features;
  float scale;
  bool causal;
};

struct Forward {
  Heads y, q, k, v;
  float* lse;
  Problem p;
};

__global__ __launch_bounds__(kThreads) void forward_by_tiles(Forward a) {
  extern __shared__ float4 shared_memory[];
  float* const q = reinterpret_cast<float*>(shared_memory);
  float *const k = q + kTileFloats, *const v = k + kTileFloats;
  float* const weights = k;  // once the scores are made, the keys are not needed
  const int64_t tiles = ceil_div(a.p.queries, kTile), first = blockIdx.x % tiles * kTile, head = blockIdx.x / tiles;
  const int64_t b = head / a.p.heads, h = head % a.p.heads;
  const auto base = [&](const Heads& x) { return b * x.batch + h * x.head; };
  load_tile(q, a.q, base(a.q), first, a.p.queries, a.p.features);

  float sum[4][4] = {}, largest[4], total[4] = {};
#pragma unroll
  for (float& x : largest) x = -INFINITY;
  const int64_t end = a.p.causal ? min(a.p.keys, first + kTile) : a.p.keys;
  for (int64_t start = 0; start < end; start += kTile) {
    __syncthreads();
    load_tile(k, a.k, base(a.k), start, a.p.keys, a.p.features);
    load_tile(v, a.v, base(a.v), start, a.p.keys, a.p.features);
    __syncthreads();
    float scores[4][4];
    multiply_transposed(scores, q, k, a.p.features);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t visible = a.p.causal ? min(a.p.keys, first + 4 * ty() + i + 1) : a.p.keys;
      float peak = largest[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[i][j] *= a.p.scale;
        if (start + tx() + 16 * j < visible)
          peak = fmaxf(peak, scores[i][j]);  // skips NaN; the exponential brings it back
      }
      peak = row_reduce<Max>(peak);
      const float shrink = expf(largest[i] - peak);
      largest[i] = peak;
      total[i] *= shrink;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[i][j] = start + tx() + 16 * j < visible ? expf(scores[i][j] - peak) : 0;
        total[i] += scores[i][j];
        sum[i][j] *= shrink;
      }
    }
    __syncthreads();
    store_scores(weights, scores);
    __syncthreads();
    add_product(sum, weights, v);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t token = first + 4 * ty() + i;
    total[i] = row_reduce<Sum>(total[i]);
    if (tx() == 0 && token < a.p.queries) a.lse[head * a.p.queries + token] = largest[i] + logf(total[i]);
    total[i] = 1 / total[i];
  }
  store_tile(a.y, base(a.y), first, a.p.queries, a.p.features, sum, total);
}

// One side's gradients: of keys and values (kKeys) or of queries. A block owns a tile of that side and walks the other.
struct Backward {
  Heads own, own_partner;      // keys and values; or queries and dy
  Heads other, other_partner;  // queries and dy; or keys and values
  Heads grad, grad_partner;    // dk and dv; or dq and nothing. No data: not wanted.
  const float *lse, *delta;
  Problem p;
};

// From scores s and the gradients dp of the probabilities: s = the probabilities, dp = the gradients of the scores
// (without the factor `scale`), zero where nothing is visible.
template <bool kKeys>
__device__ __forceinline__ void score_gradients(float (&s)[4][4], float (&dp)[4][4], const Backward& a, int64_t head,
                                                int64_t first, int64_t start) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t mine = first + 4 * ty() + i, others = start + tx() + 16 * j;
      const int64_t query = kKeys ? others : mine, key = kKeys ? mine : others;
      const bool visible = query < a.p.queries && key < a.p.keys && (!a.p.causal || key <= query);
      const int64_t row = head * a.p.queries + query;
      s[i][j] = visible ? expf(s[i][j] * a.p.scale - a.lse[row]) : 0;
      dp[i][j] = visible ? s[i][j] * (dp[i][j] - a.delta[row]) : 0;
    }
}

template <bool kKeys>
__global__ __launch_bounds__(kThreads, 2) void backward_by_tiles(Backward a) {
  extern __shared__ float4 shared_memory[];
  float* const own = reinterpret_cast<float*>(shared_memory);
  float *const own_partner = own + kTileFloats, *const other = own_partner + kTileFloats;
  float *const other_partner = other + kTileFloats, *const weights = other_partner + kTileFloats;
  const int64_t mine = kKeys ? a.p.keys : a.p.queries, others = kKeys ? a.p.queries : a.p.keys;
  const int64_t tiles = ceil_div(mine, kTile), first = blockIdx.x % tiles * kTile, head = blockIdx.x / tiles;
  const int64_t b = head / a.p.heads, h = head % a.p.heads;
  const auto base = [&](const Heads& x) { return b * x.batch + h * x.head; };
  load_tile(own, a.own, base(a.own), first, mine, a.p.features);
  load_tile(own_partner, a.own_partner, base(a.own_partner), first, mine, a.p.features);

  float grad[4][4] = {}, grad_partner[4][4] = {};
  const int64_t begin = kKeys && a.p.causal ? first : 0;
  const int64_t end = !kKeys && a.p.causal ? min(others, first + kTile) : others;
  for (int64_t start = begin; start < end; start += kTile) {
    __syncthreads();
    load_tile(other, a.other, base(a.other), start, others, a.p.features);
    load_tile(other_partner, a.other_partner, base(a.other_partner), start, others, a.p.features);
    __syncthreads();
    float s[4][4], dp[4][4];
    multiply_transposed(s, own, other, a.p.features);
    multiply_transposed(dp, own_partner, other_partner, a.p.features);
    score_gradients<kKeys>(s, dp, a, head, first, start);
    if (kKeys) {
      store_scores(weights, s);
      __syncthreads();
      add_product(grad_partner, weights, other_partner);
      __syncthreads();
    }
    store_scores(weights, dp);
    __syncthreads();
    add_product(grad, weights, other);
  }
  const float scale[4] = {a.p.scale, a.p.scale, a.p.scale, a.p.scale}, one[4] = {1, 1, 1, 1};
  if (a.grad.data) store_tile(a.grad, base(a.grad), first, mine, a.p.features, grad, scale);
  if (kKeys && a.grad_partner.data)
    store_tile(a.grad_partner, base(a.grad_partner), first, mine, a.p.features, grad_partner, one);
}

// kLanes of a warp a row.
template <int kLanes>
__global__ __launch_bounds__(kThreads) void row_products(float* delta, Heads dy, Heads y, int heads, int tokens,
                                                         int features, int rows) {
  launch_dependents();
  const int row = int((blockIdx.x * kThreads + threadIdx.x) / kLanes), lane = int(threadIdx.x) % kLanes;
  const bool there = row < rows;
  const int token = row % tokens, h = row / tokens % heads, b = row / tokens / heads;
  const auto base = [&](const Heads& x) { return b * x.batch + h * x.head + token * x.token; };
  float sum = 0;
  for (int d = 4 * lane; there && d < features; d += 4 * kLanes) {
    const float4 u = load_four(dy, base(dy) + d, features - d), v = load_four(y, base(y) + d, features - d);
    sum += u.x * v.x + u.y * v.y + u.z * v.z + u.w * v.w;
  }
#pragma unroll
  for (int other = kLanes / 2; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
  if (there && lane == 0) delta[row] = sum;
}

Problem problem(const AttentionArgs& a) {
  return {a.q.shape[2], a.q.shape[1], a.k.shape[1], int(a.q.shape[3]), a.scale, a.causal};
}

// A launch for tokens of some heads, with room for some tiles.
Launch tiles_of(int64_t tokens, int64_t heads, size_t tiles_in_memory) {
  return {unsigned(ceil_div(tokens, kTile) * heads), kThreads, tiles_in_memory * kTileFloats * sizeof(float)};
}

}  // namespace

void attention_by_tiles(CudaBackend& cuda, const AttentionArgs& a) {
  const Forward arguments{heads_of(a.y), heads_of(a.q), heads_of(a.k), heads_of(a.v), a.lse.as<float>(), problem(a)};
  launch("attention", cuda.stream(), tiles_of(a.q.shape[1], a.q.shape[0] * a.q.shape[2], 3), forward_by_tiles,
         arguments);
}

void attention_by_tiles_backward(CudaBackend& cuda, const AttentionArgs& a, const AttentionGradients& g, View delta) {
  const auto optional = [](const View& x) { return x ? heads_of(x) : Heads{}; };
  const Problem p = problem(a);
  const int64_t heads = a.q.shape[0] * a.q.shape[2];
  const Heads keys = heads_of(a.k), values = heads_of(a.v), queries = heads_of(a.q), grads = heads_of(g.dy);
  const float *const lse = a.lse.as<float>(), *const delta_data = delta.as<float>();
  if (g.dk || g.dv) {
    const Backward arguments{keys, values, queries, grads, optional(g.dk), optional(g.dv), lse, delta_data, p};
    launch("attention_backward", cuda.stream(), tiles_of(p.keys, heads, 5), backward_by_tiles<true>, arguments);
  }
  if (g.dq) {
    const Backward arguments{queries, grads, keys, values, heads_of(g.dq), {}, lse, delta_data, p};
    launch("attention_backward", cuda.stream(), tiles_of(p.queries, heads, 5), backward_by_tiles<false>, arguments);
  }
}

void attention_delta(CudaBackend& cuda, View delta, View dy, View y) {
  const bool narrow = y.shape[3] <= 64;
  const int64_t rows = delta.numel(), per_block = kThreads / (narrow ? 16 : 32);
  launch("attention_delta", cuda.stream(), {unsigned(ceil_div(rows, per_block)), kThreads},
         narrow ? row_products<16> : row_products<32>, delta.as<float>(), heads_of(dy), heads_of(y), int(y.shape[2]),
         int(y.shape[1]), int(y.shape[3]), int(rows));
}

}  // namespace wick
