// Attention of a decoding step: few queries, and as many keys as the cache holds. Speed depends on reading these once
// and early, so the heads that share keys are rows of one tile, and warps take parts of the keys (split-K): as many as
// fill the device, however many are seen in the end. The sums of a block's warps are added in its shared memory; those
// of blocks in a cluster's, whose blocks send each other the columns to add. Before 9.0 they go through memory to a
// second kernel. All is added in the order of the parts.
#include <algorithm>
#include <bit>

#include "wick/backend/cuda/attention/kernels.h"
#include "wick/backend/cuda/attention/sm80.cuh"
#include "wick/backend/cuda/device/barriers.cuh"
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/runtime/dense.h"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kRows = 16, kKeyTile = 32;
constexpr int kMostWarps = 8, kMostCluster = 8;
constexpr int kAddThreads = 128;

// Four features of a row over some of the keys: sums of values and of exponentials, less the largest score.
struct alignas(16) Part {
  float4 sum;
  float peak, total, unused[2];
};

// Row r of the heads that share keys is query r / shared of the head r % shared of them. A lone warp's time is its
// instructions, so most is computed before the preceding kernel has ended, and nothing is divided after.
template <class T>
struct FewQueries : AttentionForward<T> {
  int key_heads, rows;        // of an entry, of a key head
  uint32_t over_shared;       // 2^32 / shared
  int block_bits, part_bits;  // of the numbers of blocks and of parts
  bool constant;              // the ranges
  Part* of_block;             // [B, key heads, rows, features / 4, blocks], or null where these are a cluster

  __device__ __forceinline__ int query_of(int row) const {
    return this->shape.shared == 1 ? row : int(__umulhi(uint32_t(row), over_shared));
  }
};

// One key head of one entry.
struct OneHead {
  int entry, key_head;

  // Row `row` of it in a view of all heads of queries.
  template <class T, class Q>
  __device__ __forceinline__ Q* row_of(const FewQueries<T>& a, const HeadsOf<Q>& x, int row) const {
    const int query = a.query_of(row), head = key_head * a.shape.shared + row - query * a.shape.shared;
    return x.data + entry * x.batch + head * x.head + query * x.token;
  }
  template <class Q>
  __device__ __forceinline__ Q* keys_of(const HeadsOf<Q>& x) const {
    return x.data + entry * x.batch + key_head * x.head;
  }
};

// A warp's shared memory; in the end its sums [kRows][kPitch] in f32 take the keys' place.
template <class T, int kD>
struct WarpTiles {
  T k[kKeyTile * kPitch<kD>], v[kKeyTile * kPitch<kD>];
};

// The sum of parts of(0) to of(count - 1).
template <class Of>
__device__ __forceinline__ Part add_parts(int count, float scale2, const Of& of) {
  Part all{{0, 0, 0, 0}, -INFINITY, 0, {}};
#pragma unroll 4
  for (int i = 0; i < count; ++i) all.peak = fmaxf(all.peak, of(i).peak);
  const float from = all.peak == -INFINITY ? 0 : all.peak;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const Part& part = of(i);
    // A part that saw nothing has left no sums.
    const float weight = part.total == 0 ? 0 : fast_exp2((part.peak - from) * scale2);
    const float4 x = part.total == 0 ? float4{0, 0, 0, 0} : part.sum;
    all.total = fmaf(weight, part.total, all.total);
    all.sum = {fmaf(weight, x.x, all.sum.x), fmaf(weight, x.y, all.sum.y), fmaf(weight, x.z, all.sum.z),
               fmaf(weight, x.w, all.sum.w)};
  }
  return all;
}

// The total of one row's column leaves.
template <class T>
__device__ __forceinline__ void store_total(const FewQueries<T>& a, const OneHead& h, const Part& all, int row,
                                            int column) {
  const AttentionProblem& s = a.shape;
  const int query = a.query_of(row), head = h.key_head * s.shared + row - query * s.shared;
  if (column == 0)
    a.lse[(int64_t(h.entry) * s.heads + head) * s.queries + query] = all.peak * s.scale + logf(all.total);
  const float inverse = all.total == 0 ? 0 : __frcp_rn(all.total);
  *reinterpret_cast<uint2*>(h.row_of(a, a.y, row) + column * 4) = {pack<T>(all.sum.x * inverse, all.sum.y * inverse),
                                                                   pack<T>(all.sum.z * inverse, all.sum.w * inverse)};
}

// Tokens start to start + kKeyTile of a head; the last one again in place of those from `to` on, whose weights are 0.
template <int kD, class T>
__device__ __forceinline__ void load_tokens(T* tile, const T* tokens, int64_t stride, int start, int to, int features,
                                            int lane) {
  constexpr int kStep = 32 / (kD / 8);  // tokens at a time
  const int row = lane / (kD / 8), column = lane % (kD / 8) * 8, last = to - 1 - start;
  const bool there = column < features;
  tokens += start * stride + (there ? column : 0);
  tile += row * kPitch<kD> + column;
  if (start < to)
#pragma unroll
    for (int i = 0; i < kKeyTile; i += kStep)
      copy_async(tile + i * kPitch<kD>, tokens + uint32_t(min(row + i, last)) * uint32_t(stride), there);
  copy_async_commit();
}

// A warp's part of the keys that the rows from `first` on see; `here` rows.
struct PartOfKeys {
  int2 first_seen, last_seen;
  int from, to;
  RowLimits limits;  // of the lane's rows, within the part

  template <class T>
  __device__ __forceinline__ PartOfKeys(const FewQueries<T>& a, int entry, int first, int here, int warp, int lane) {
    const auto seen = [&](int row) { return a.shape.seen(entry, a.query_of(first + min(row, here - 1))); };
    first_seen = seen(0), last_seen = seen(kRows - 1);
    const int all = ceil_div(max(last_seen.y - first_seen.x, 0), kKeyTile);
    const int share = (all + (1 << a.part_bits) - 1) >> a.part_bits;
    const int part = (warp << a.block_bits) + int(blockIdx.x);  // the first ones lie in different blocks
    from = first_seen.x + part * share * kKeyTile;
    to = min(from + share * kKeyTile, last_seen.y);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int2 of_row = seen(lane / 4 + 8 * r);
      limits.of[r] = {max(of_row.x, from), min(of_row.y, to)};
    }
  }
};

// The queries of `here` rows from `first` on. Rows behind the last one and columns behind the last feature are zeros.
template <int kD, class T>
__device__ __forceinline__ void load_queries(T* tile, const FewQueries<T>& a, const OneHead& head, int first,
                                             int here) {
  for (int i = int(threadIdx.x); i < kRows * kD / 8; i += int(blockDim.x)) {
    const int row = i / (kD / 8), column = i % (kD / 8) * 8;
    const bool there = row < here && column < a.shape.features;
    copy_async(tile + row * kPitch<kD> + column, there ? head.row_of(a, a.q, first + row) + column : a.q.data, there);
  }
  copy_async_commit();
}

// A warp's sums, for all of its block to see.
template <int kD>
__device__ __forceinline__ void store_sums(float* to, float2 (&statistics)[kRows], const float (&sum)[kD / 8][4],
                                           const RowSum (&rows)[2], int here, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    float total = rows[r].total;
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if (row >= here) continue;
    if (lane % 4 == 0) statistics[row] = {rows[r].peak, total};
    float* const out = to + row * kPitch<kD> + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kD / 8; ++j) *reinterpret_cast<float2*>(out + 8 * j) = {sum[j][2 * r], sum[j][2 * r + 1]};
  }
}

// Adds the sums of a block's warps, and with the cluster's other blocks those of each block: units of four columns go
// round the blocks.
template <class T, int kD>
__device__ __forceinline__ void add_up(const FewQueries<T>& a, const OneHead& head, int first, int here,
                                       const WarpTiles<T, kD>* tiles, const float2 (*statistics)[kRows], Part* inbox,
                                       uint64_t* arrived) {
  constexpr int kColumns = kD / 4, kStep = int(sizeof(WarpTiles<T, kD>) / sizeof(float));
  const int thread = int(threadIdx.x), warps = int(blockDim.x) / 32, units = here * kColumns;
  const int blocks = 1 << a.block_bits, block = int(blockIdx.x);
  const float scale2 = a.shape.scale * kLog2E;
  for (int unit = thread; unit < units; unit += int(blockDim.x)) {
    const int row = unit / kColumns, column = unit % kColumns;
    const float* const sums = reinterpret_cast<const float*>(tiles->k) + row * kPitch<kD> + column * 4;
    const Part part = add_parts(warps, scale2, [&](int w) {
      const float2 of_warp = statistics[w][row];
      return Part{*reinterpret_cast<const float4*>(sums + w * kStep), of_warp.x, of_warp.y, {}};
    });
    if (a.of_block) {
      const int64_t of_all = (int64_t(blockIdx.z) * a.rows + first + row) * kColumns + column;
      a.of_block[(of_all << a.block_bits) + block] = part;
    } else if (blocks == 1) {  // no cluster
      if (column * 4 < a.shape.features) store_total(a, head, part, first + row, column);
    } else {
      Part* const there = inbox + (unit >> a.block_bits << a.block_bits) + block;
      push(&there->sum.x, part.sum, arrived, unit & (blocks - 1));
      push(&there->peak, {part.peak, part.total, 0, 0}, arrived, unit & (blocks - 1));
    }
  }
  if (a.of_block || blocks == 1) return;
  if (thread == 0) barrier_expect(arrived, units * int(sizeof(Part)));
  for (int unit = thread << a.block_bits; unit < units; unit += int(blockDim.x) << a.block_bits) {
    barrier_wait_cluster(arrived, 0);
    const Part total = add_parts(blocks, scale2, [&](int b) { return inbox[unit + b]; });
    const int mine = unit + block;
    if (mine % kColumns * 4 < a.shape.features) store_total(a, head, total, first + mine / kColumns, mine % kColumns);
  }
}

template <class T, int kD>
__global__ __launch_bounds__(32 * kMostWarps) void few_queries(const __grid_constant__ FewQueries<T> a) {
  extern __shared__ uint4 memory[];
  __shared__ float2 statistics[kMostWarps][kRows];  // the largest score and the sum of exponentials
  __shared__ uint64_t arrived;
  const AttentionProblem& s = a.shape;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
  T* const queries = reinterpret_cast<T*>(memory);
  auto* const tiles = reinterpret_cast<WarpTiles<T, kD>*>(queries + kRows * kPitch<kD>);
  T *const tile_k = tiles[warp].k, *const tile_v = tiles[warp].v;
  launch_dependents();
  if (threadIdx.x == 0 && !a.of_block) {
    barrier_init(&arrived, 1);
    barrier_init_done();
  }
  cluster_arrive();
  if (!a.constant) wait_for_previous();
  const int first = int(blockIdx.y) * kRows, here = min(kRows, a.rows - first);
  const OneHead head{int(blockIdx.z) / a.key_heads, int(blockIdx.z) % a.key_heads};
  const PartOfKeys part(a, head.entry, first, here, warp, lane);
  const T *const keys = head.keys_of(a.k), *const values = head.keys_of(a.v);
  if (a.constant) wait_for_previous();

  load_tokens<kD>(tile_k, keys, a.k.token, part.from, part.to, s.features, lane);
  load_queries<kD>(queries, a, head, first, here);
  load_tokens<kD>(tile_v, values, a.v.token, part.from, part.to, s.features, lane);
  copy_async_wait<1>();
  __syncthreads();  // the queries are there
  float sum[1][kD / 8][4] = {};
  RowSum rows[2];
#pragma unroll 1
  for (int start = part.from; start < part.to; start += kKeyTile) {
    copy_async_wait<1>();  // the keys; the values may be on their way
    __syncwarp();
    float scores[1][kKeyTile / 8][4], shrink[2];
    multiply_rows<kD>(scores, queries, tile_k, lane);
    __syncwarp();
    load_tokens<kD>(tile_k, keys, a.k.token, start + kKeyTile, part.to, s.features, lane);
    const Place place{0, start + lane % 4 * 2};
    if (start + kKeyTile > part.to || !sees_all(part.first_seen, part.last_seen, start, kKeyTile))
      hide<false>(scores[0], part.limits, place, -INFINITY);
    exponentials<true>(scores[0], rows, shrink, s.scale * kLog2E, AttentionProblem{}, place, false);
    if (start > part.from) rescale(sum[0], shrink);
    copy_async_wait<1>();
    __syncwarp();
    add_product<kD>(sum, scores, tile_v, lane);
    __syncwarp();
    load_tokens<kD>(tile_v, values, a.v.token, start + kKeyTile, part.to, s.features, lane);
  }
  store_sums<kD>(reinterpret_cast<float*>(tile_k), statistics[warp], sum[0], rows, here, lane);
  cluster_wait();  // the other blocks' barriers are there
  __syncthreads();
  add_up(a, head, first, here, tiles, statistics, reinterpret_cast<Part*>(tiles + warps), &arrived);
}

// A thread has four features of a row.
template <class T, int kD>
__global__ __launch_bounds__(kAddThreads) void add_blocks(const __grid_constant__ FewQueries<T> a, int units) {
  constexpr int kColumns = kD / 4;
  const int unit = int(blockIdx.x) * kAddThreads + int(threadIdx.x), column = unit % kColumns, row = unit / kColumns;
  if (unit >= units || column * 4 >= a.shape.features) return;
  const Part* const of_block = a.of_block + (int64_t(unit) << a.block_bits);
  const Part total = add_parts(1 << a.block_bits, a.shape.scale * kLog2E, [&](int b) { return of_block[b]; });
  const int head = row / a.rows;
  store_total(a, {head / a.key_heads, head % a.key_heads}, total, row % a.rows, column);
}

// Parts are as many as fill the device, and no more than the cache has tiles of keys: more would only take shared
// memory, where the next kernel's weights could be on their way. Eight warps a block pay where a part is long; 12.0 has
// no room for them.
struct Split {
  bool clusters;  // of a head's blocks
  int blocks, warps;

  Split(const Gpu& gpu, int keys, int other_blocks) : clusters(gpu.capability() >= 90) {
    const int key_tiles = ceil_div(keys, kKeyTile);
    const int room = gpu.multiprocessors() * (clusters ? 1 : 2) / other_blocks;
    const int most = clusters ? std::min(room, kMostCluster) : room;
    blocks = int(std::bit_floor(unsigned(std::clamp(most, 1, key_tiles))));
    const int of_block = ceil_div(key_tiles, blocks), few = kMostWarps / 2;
    const bool many = clusters && gpu.capability() < 120 && of_block >= 4 * few;
    warps = many ? kMostWarps : std::min(int(std::bit_ceil(unsigned(of_block))), few);
  }
};

template <class T, int kD>
void run_few_queries(CudaBackend& cuda, const AttentionArgs& args) {
  constexpr int kColumns = kD / 4;
  const AttentionProblem s = attention_problem(args);
  const int rows = s.queries * s.shared, heads = s.entries * s.key_heads, row_tiles = ceil_div(rows, kRows);
  const int units = heads * rows * kColumns;
  const Split split(cuda, s.keys, heads * row_tiles);
  const int block_bits = std::countr_zero(unsigned(split.blocks));
  const Scratch parts = split.clusters ? Scratch() : Scratch(cuda, size_t(units) * size_t(split.blocks) * sizeof(Part));
  const uint32_t over_shared =
      uint32_t((uint64_t{1} << 32) / uint64_t(s.shared)) + (std::has_single_bit(unsigned(s.shared)) ? 0u : 1u);
  const FewQueries<T> a{AttentionForward<T>(args),
                        s.key_heads,
                        rows,
                        over_shared,
                        block_bits,
                        block_bits + std::countr_zero(unsigned(split.warps)),
                        !args.ranges || args.ranges.constant,
                        parts.as<Part>()};
  const size_t inbox = split.clusters ? size_t(std::min(kRows, rows) * kColumns) * sizeof(Part) : 0;
  const size_t tiles = sizeof(T) * kRows * kPitch<kD> + size_t(split.warps) * sizeof(WarpTiles<T, kD>);
  launch("attention", cuda.stream(),
         {dim3(unsigned(split.blocks), unsigned(row_tiles), unsigned(heads)), unsigned(32 * split.warps), tiles + inbox,
          split.clusters ? split.blocks : 1, split.clusters},
         few_queries<T, kD>, a);
  if (!split.clusters)
    launch("attention_add_blocks", cuda.stream(), {unsigned(ceil_div(units, kAddThreads)), kAddThreads},
           add_blocks<T, kD>, a, units);
}

}  // namespace

void attention_of_few_queries(CudaBackend& cuda, const AttentionArgs& a) {
  dispatch_heads(a.q,
                 [&]<class T, int kD>(Type<T>, std::integral_constant<int, kD>) { run_few_queries<T, kD>(cuda, a); });
}

}  // namespace wick
