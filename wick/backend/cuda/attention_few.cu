// Attention of a step of decoding: few queries, and as many keys as the cache holds. All that counts there is reading
// them once, so the heads that share keys are rows of one tile, and warps that share nothing else take parts of the
// keys, as many as fill the device, however many are seen in the end. What each sums goes to memory in f32, and a
// second kernel adds it in the order of the parts.
#include <algorithm>

#include "wick/backend/cuda/attention_mma.cuh"
#include "wick/backend/cuda/attention_ranges.cuh"
#include "wick/backend/cuda/attention_ranges.h"
#include "wick/backend/cuda/device/cluster.cuh"

namespace wick {
namespace {

constexpr int kRows = 16, kKeyTile = 32;
constexpr int kMostParts = 128;
constexpr int kAddWarps = 8, kAddThreads = 32 * kAddWarps;

// Row r of the heads that share keys is query r / shared of the head r % shared of them.
struct Parts {
  int rows, tiles, parts;  // tiles of kRows
  float2* statistics;      // [B, key heads, tiles, parts, kRows]: the largest score and the sum of exponentials
  float* sums;             // the same and [features]

  __device__ __forceinline__ int64_t at(int key_head, int tile, int part) const {
    return ((int64_t(key_head) * tiles + tile) * parts + part) * kRows;
  }
};

template <class T>
struct FewQueries {
  HeadsOf<const T> q, k, v;
  HeadsOf<T> y;
  float* lse;  // [B, H, T]
  RangedShape shape;
  Parts parts;
};

// What a warp has in shared memory.
template <class T, int kD>
struct WarpTiles {
  T q[kRows * kPitch<kD>], k[kKeyTile * kPitch<kD>], v[kKeyTile * kPitch<kD>];
};

// The tile's queries, of which row i comes from `from(i)`, null for zeros; by one warp.
template <int kD, class T, class From>
__device__ __forceinline__ void load_queries(T* tile, int features, const T* any, int lane, const From& from) {
#pragma unroll 1
  for (int i = lane; i < kRows * kD / 8; i += 32) {
    const int row = i / (kD / 8), column = i % (kD / 8) * 8;
    const T* const start = column < features ? from(row) : nullptr;
    copy_async(tile + row * kPitch<kD> + column, start ? start + column : any, start != nullptr);
  }
}

template <class T, int kD>
__global__ __launch_bounds__(kThreads) void sums_of_parts(const __grid_constant__ FewQueries<T> a) {
  extern __shared__ uint4 memory[];
  wait_for_previous();
  launch_dependents();
  const RangedShape& s = a.shape;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  auto& tiles = reinterpret_cast<WarpTiles<T, kD>*>(memory)[warp];
  const int part = warp * int(gridDim.x) + int(blockIdx.x);  // the first ones lie in different blocks
  if (part >= a.parts.parts) return;
  const int first = int(blockIdx.y) * kRows, key_head = int(blockIdx.z), entry = key_head / s.key_heads();
  const auto query_of = [&](int row) { return min(first + row, a.parts.rows - 1) / s.shared; };
  const int begin = s.seen(entry, query_of(0)).x, end = s.seen(entry, query_of(kRows - 1)).y;
  const int all = (max(end - begin, 0) + kKeyTile - 1) / kKeyTile, share = (all + a.parts.parts - 1) / a.parts.parts;
  const int from = begin + part * share * kKeyTile, to = min(from + share * kKeyTile, end);
  const int64_t at = a.parts.at(key_head, int(blockIdx.y), part);
  if (from >= to) {
    if (lane < kRows) a.parts.statistics[at + lane] = {-INFINITY, 0};
    return;
  }

  const T *const keys = a.k.at(key_head, s.key_heads()), *const values = a.v.at(key_head, s.key_heads());
  const auto load_keys = [&](T* tile, const T* tokens, int64_t stride, int start) {
    constexpr int kStep = 32 / (kD / 8);  // tokens at a time
    const int row = lane / (kD / 8), column = lane % (kD / 8) * 8;
    const T* next = tokens + (start + row) * stride + column;
#pragma unroll 4
    for (int i = start < to ? row : kKeyTile; i < kKeyTile; i += kStep, next += kStep * stride) {
      const bool there = start + i < to && column < s.features;
      copy_async(tile + i * kPitch<kD> + column, there ? next : tokens, there);
    }
    copy_async_commit();
  };
  load_queries<kD>(tiles.q, s.features, keys, lane, [&](int row) -> const T* {
    const int r = first + row, head = key_head * s.shared + r % s.shared;
    return r < a.parts.rows ? a.q.at(head, s.heads) + r / s.shared * a.q.token : nullptr;
  });
  load_keys(tiles.k, keys, a.k.token, from);
  load_keys(tiles.v, values, a.v.token, from);
  RowLimits limits;
#pragma unroll
  for (int r = 0; r < 2; ++r) limits.of[r] = s.seen(entry, query_of(lane / 4 + 8 * r));
  const int2 first_seen = s.seen(entry, query_of(0)), last_seen = s.seen(entry, query_of(kRows - 1));

  float sum[1][kD / 8][4] = {};
  RowSum rows[2];
  for (int start = from; start < to; start += kKeyTile) {
    copy_async_wait<1>();  // the keys; the values may be on their way
    __syncwarp();
    float scores[1][kKeyTile / 8][4], shrink[2];
    multiply_rows<kD>(scores, tiles.q, tiles.k, lane);
    __syncwarp();
    load_keys(tiles.k, keys, a.k.token, start + kKeyTile);
    const Place place{0, start + lane % 4 * 2};
    if (start + kKeyTile > to || !sees_all(first_seen, last_seen, start, kKeyTile)) {
      hide<false>(scores[0], limits, place, -INFINITY);
      hide<false>(scores[0], RowLimits{{{from, to}, {from, to}}}, place, -INFINITY);
    }
    exponentials<true>(scores[0], rows, shrink, s.scale * kLog2E, AttentionShape{}, place, false);
    rescale(sum[0], shrink);
    copy_async_wait<1>();
    __syncwarp();
    add_product<kD>(sum, scores, tiles.v, lane);
    __syncwarp();
    load_keys(tiles.v, values, a.v.token, start + kKeyTile);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    float total = rows[r].total;
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if (first + row >= a.parts.rows) continue;
    if (lane % 4 == 0) a.parts.statistics[at + row] = {rows[r].peak, total};
    float* const out = a.parts.sums + (at + row) * s.features + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kD / 8; ++j)
      if (8 * j < s.features) *reinterpret_cast<float2*>(out + 8 * j) = {sum[0][j][2 * r], sum[0][j][2 * r + 1]};
  }
}

// A block has one row: first what each part weighs, then a warp every kAddWarps-th part, a lane four features.
template <class T>
__global__ __launch_bounds__(kAddThreads) void add_parts(const __grid_constant__ FewQueries<T> a) {
  __shared__ float weights[kMostParts];
  __shared__ float4 sums[kAddWarps][32];
  wait_for_previous();
  launch_dependents();
  const RangedShape& s = a.shape;
  const Parts& p = a.parts;
  const int key_head = int(blockIdx.x) / p.rows, r = int(blockIdx.x) % p.rows;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, feature = lane * 4;
  const int64_t first = p.at(key_head, r / kRows, 0) + r % kRows;

  // Every warp for itself: the largest score of all, and the sum of exponentials.
  float2 of_lane[kMostParts / 32];
  float peak = -INFINITY, total = 0;
#pragma unroll
  for (int i = 0; i < kMostParts / 32; ++i) {
    const int part = lane + 32 * i;
    of_lane[i] = part < p.parts ? p.statistics[first + part * kRows] : float2{-INFINITY, 0};
    peak = fmaxf(peak, of_lane[i].x);
  }
  for (int step = 16; step > 0; step /= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, step));
  const float from = peak == -INFINITY ? 0 : peak, scale2 = s.scale * kLog2E;
#pragma unroll
  for (int i = 0; i < kMostParts / 32; ++i) {
    // What saw nothing has left no sums.
    const float weight = of_lane[i].y == 0 ? 0 : fast_exp2((of_lane[i].x - from) * scale2);
    total = fmaf(weight, of_lane[i].y, total);
    if (warp == 0) weights[lane + 32 * i] = weight;
  }
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  __syncthreads();

  float4 sum = {0, 0, 0, 0};
  if (feature < s.features)
#pragma unroll 4
    for (int part = warp; part < p.parts; part += kAddWarps) {
      const float weight = weights[part];
      if (weight == 0) continue;
      const float4 x = *reinterpret_cast<const float4*>(p.sums + (first + part * kRows) * s.features + feature);
      sum = {fmaf(weight, x.x, sum.x), fmaf(weight, x.y, sum.y), fmaf(weight, x.z, sum.z), fmaf(weight, x.w, sum.w)};
    }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0) return;
  for (int w = 1; w < kAddWarps; ++w) {
    const float4 x = sums[w][lane];
    sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
  }
  const int head = key_head * s.shared + r % s.shared, query = r / s.shared;
  if (lane == 0) a.lse[int64_t(head) * s.queries + query] = peak * s.scale + logf(total);
  const float inverse = total == 0 ? 0 : 1 / total;
  if (feature < s.features)
    *reinterpret_cast<uint2*>(a.y.at(head, s.heads) + query * a.y.token + feature) = {
        pack<T>(sum.x * inverse, sum.y * inverse), pack<T>(sum.z * inverse, sum.w * inverse)};
}

}  // namespace

void attention_of_few_queries(CudaBackend& cuda, View y, View lse, View q, View k, View v, float scale, bool causal,
                              View ranges) {
  dispatch_heads(q, [&]<class T, int kD>(Type<T>, std::integral_constant<int, kD>) {
    const RangedShape s = ranged_shape(q, k, scale, causal, ranges);
    const int key_heads = s.entries * int(k.shape[2]), rows = s.queries * s.shared, tiles = (rows + kRows - 1) / kRows;
    const int most = std::min(kMostParts, (s.keys + kKeyTile - 1) / kKeyTile);
    const int parts = std::clamp(2 * kWarps * cuda.multiprocessors() / (key_heads * tiles), 1, most);
    const size_t count = size_t(key_heads) * size_t(tiles) * size_t(parts) * kRows;
    const Scratch statistics(cuda, count * sizeof(float2)), sums(cuda, count * size_t(s.features) * sizeof(float));
    const FewQueries<T> a{HeadsOf<const T>(q),
                          HeadsOf<const T>(k),
                          HeadsOf<const T>(v),
                          HeadsOf<T>(y),
                          lse.as<float>(),
                          s,
                          {rows, tiles, parts, statistics.as<float2>(), sums.as<float>()}};
    const bool overlap = cuda.capability() >= 90;
    launch("attention", cuda.stream(),
           {dim3(unsigned((parts + kWarps - 1) / kWarps), unsigned(tiles), unsigned(key_heads)), dim3(kThreads),
            kWarps * sizeof(WarpTiles<T, kD>), 1, overlap},
           sums_of_parts<T, kD>, a);
    launch("attention_add_parts", cuda.stream(), {dim3(unsigned(key_heads * rows)), dim3(kAddThreads), 0, 1, overlap},
           add_parts<T>, a);
  });
}

}  // namespace wick
