// One warp issues TMA loads of tiles of x, 64 x 64, and two warpgroups multiply them where they lie (wgmma): rows of x
// with a factor (x f), whose sums are complete when a row of tiles has gone by, and columns of x with s (x^T s), whose
// sums stay in registers until the end. A block has a slice of the columns and a share of the rows; the warpgroups take
// rows of tiles in turn.
//
// The slices' parts of x f, and the shares' parts of x^T s (split-K), are added up by kernels of their own, in a fixed
// order. Such parts lie in memory as they lay in registers.
#include "wick/backend/cuda/linear/lora_products.h"

#include <algorithm>
#include <limits>

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/device/ring.cuh"
#include "wick/backend/cuda/device/wgmma.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"
#include "wick/backend/cuda/runtime/tensor_map.h"

namespace wick {

namespace {

constexpr int kTile = 64, kTileBytes = kTile * kTile * 2;
constexpr int kConsumers = 2, kPeers = 128;  // warpgroups that multiply, and their threads
constexpr int kThreads = (kConsumers + 1) * kPeers;
constexpr int kSharedBytes = 216 * 1024;  // of all blocks of an SM

// kProject: with x f, else x^T s alone, in blocks so small that two fit.
template <int kRank, bool kProject>
struct Pass {
  static constexpr int kBlocks = kProject ? 1 : 2;                                       // per SM
  static constexpr int kMostChunks = kProject ? 256 / kRank : kRank == 64 ? 2 : 4;       // of 64 columns
  static constexpr int kFactorBytes = kTile * kRank * 2, kLowBytes = kTile * kRank * 2;  // of a tile
  static constexpr int kLowStages = 4;
  static constexpr int kFactors = kProject ? kMostChunks * kFactorBytes : 0, kLow = kLowStages * kLowBytes;
  static constexpr int kStages = (kSharedBytes / kBlocks - kFactors - kLow) / kTileBytes;
  static_assert(kStages > kMostChunks);
};

struct PassMaps {
  CUtensorMap x, factor, low;
};
struct PassShape {
  int row_tiles, chunks, slices, shares;
  Follows follows;         // waits at once; a projection, before s is read; a product, at the end, so that a wait for
                           // this kernel is a wait for the product too
  float4* parts;           // of x f: [row_tiles][slices][kRank / 8][kPeers]
  float4* gradient_parts;  // of x^T s: [chunks][shares][kRank / 8][kPeers]
};

#ifdef WICK_SM90A

struct Rings {
  Ring x, low;
  uint32_t factors, factors_full;
};

template <class P, bool kProject>
__device__ __forceinline__ void produce(Rings rings, const PassMaps& maps, const PassShape& shape, int first_chunk,
                                        int chunks, int first_tile, int tiles) {
  if (shape.follows == Follows::other) {
    wait_for_previous();
    launch_dependents();  // only now: the product that follows ds takes dy for written
  }
  if (kProject) {
    barrier_expect(rings.factors_full, chunks * P::kFactorBytes);
    for (int c = 0; c < chunks; ++c)
      tma_load(rings.factors + uint32_t(c * P::kFactorBytes), maps.factor, rings.factors_full, 0,
               (first_chunk + c) * kTile);
  }
  const auto load_low = [&](int i) {
    rings.low.wait_empty();
    barrier_expect(rings.low.full_barrier(), P::kLowBytes);
    tma_load(rings.low.tiles(), maps.low, rings.low.full_barrier(), 0, (first_tile + i) * kTile);
    rings.low.advance();
  };
  for (int i = 0; i < tiles; ++i) {
    if (i > 0) load_low(i);
    for (int c = 0; c < chunks; ++c) {
      rings.x.wait_empty();
      barrier_expect(rings.x.full_barrier(), kTileBytes);
      tma_load(rings.x.tiles(), maps.x, rings.x.full_barrier(), (first_chunk + c) * kTile, (first_tile + i) * kTile);
      rings.x.advance();
    }
    if (i > 0) continue;
    if (shape.follows == Follows::projection) wait_for_previous();
    load_low(i);
  }
}

// A thread's sums of a row of tiles over this block's columns.
template <int kQuads>
__device__ __forceinline__ void store_low(const PassShape& shape, const float (&sum)[kQuads * 4], int slice, int tile,
                                          int peer) {
  float4* const parts = shape.parts + (int64_t(tile) * shape.slices + slice) * kQuads * kPeers + peer;
#pragma unroll
  for (int j = 0; j < kQuads; ++j)
    __stcg(parts + j * kPeers, make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]));
}

// Both warpgroups' sums of the gradient, added up by one of them for each chunk.
template <class P, int kRank>
__device__ __forceinline__ void finish_gradient(const PassShape& shape, const float (&sum)[P::kMostChunks][kRank / 2],
                                                int first_chunk, int chunks, int share, int peer, int group,
                                                float4* exchange) {
  constexpr int kQuads = kRank / 8;
  named_barrier(1 + kConsumers, kConsumers * kPeers);  // tiles are no longer read
  const auto quad = [&](int c, int j) {
    return make_float4(sum[c][4 * j], sum[c][4 * j + 1], sum[c][4 * j + 2], sum[c][4 * j + 3]);
  };
#pragma unroll
  for (int c = 0; c < P::kMostChunks; ++c)
    if (c < chunks && c % kConsumers != group)
#pragma unroll
      for (int j = 0; j < kQuads; ++j) exchange[(c * kQuads + j) * kPeers + peer] = quad(c, j);
  named_barrier(1 + kConsumers, kConsumers * kPeers);
  float4* const parts = shape.gradient_parts + (int64_t(first_chunk) * shape.shares + share) * kQuads * kPeers + peer;
#pragma unroll
  for (int c = 0; c < P::kMostChunks; ++c)
    if (c < chunks && c % kConsumers == group)
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        float4 total = quad(c, j);
        add(total, exchange[(c * kQuads + j) * kPeers + peer]);
        __stcg(parts + (c * shape.shares * kQuads + j) * kPeers, total);
      }
}

template <class T, int kRank, bool kProject>
__device__ __forceinline__ void consume(Rings rings, const PassShape& shape, int slice, int first_chunk, int chunks,
                                        int share, int first_tile, int tiles, int group, char* memory) {
  using P = Pass<kRank, kProject>;
  const int peer = int(threadIdx.x) % kPeers;
  const WgmmaOperand<true> rows(rings.x.first);
  const WgmmaOperand<false> cols(rings.x.first);
  const WgmmaOperand<false, kRank> factor(rings.factors), low(rings.low.first);
  float gradient[P::kMostChunks][kRank / 2] = {};
  if (kProject) barrier_wait(rings.factors_full, 0);
  for (int i = 0; i < tiles; ++i) {
    if (i % kConsumers != group) {
      rings.x.advance(chunks);
      rings.low.advance();
      continue;
    }
    float sum[kRank / 2] = {};
    rings.low.wait_full();
#pragma unroll
    for (int c = 0; c < P::kMostChunks; ++c) {
      if (c >= chunks) continue;
      rings.x.wait_empty();  // the other warpgroup may still have the place's tile of the lap before
      rings.x.wait_full();
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kTile / 16; ++k) {
        const int at = rings.x.offset();
        if constexpr (kProject) wgmma<T, true, kRank>(sum, rows.at(at, k), factor.at(c * P::kFactorBytes, k));
        wgmma<T, true, kRank, true>(gradient[c], cols.at(at, k), low.at(rings.low.offset(), k));
      }
      wgmma_commit();
      wgmma_wait<0>();
      if (peer == 0) rings.x.release(rings.x.stage, 0);
      rings.x.advance();
    }
    if (peer == 0) rings.low.release(rings.low.stage, 0);
    rings.low.advance();
    if constexpr (kProject) store_low<kRank / 8>(shape, sum, slice, first_tile + i, peer);
  }
  finish_gradient<P, kRank>(shape, gradient, first_chunk, chunks, share, peer, group,
                            reinterpret_cast<float4*>(memory));
}

#endif  // WICK_SM90A

template <class T, int kRank, bool kProject>
__global__ void __launch_bounds__(kThreads, Pass<kRank, kProject>::kBlocks)
    stream_kernel(const __grid_constant__ PassMaps maps, const __grid_constant__ PassShape shape) {
#ifdef WICK_SM90A
  using P = Pass<kRank, kProject>;
  extern __shared__ char unaligned[];
  __shared__ uint64_t full[P::kStages], empty[P::kStages], low_full[P::kLowStages], low_empty[P::kLowStages],
      factors_full;
  if (shape.follows != Follows::other) launch_dependents();
  char* const memory = unaligned + (-shared_address(unaligned) & 1023);
  const uint32_t first = shared_address(memory);
  const Rings rings{{first, shared_address(full), shared_address(empty), P::kStages, kTileBytes},
                    {first + uint32_t(P::kStages * kTileBytes), shared_address(low_full), shared_address(low_empty),
                     P::kLowStages, P::kLowBytes},
                    first + uint32_t(P::kStages * kTileBytes) + P::kLow,
                    shared_address(&factors_full)};
  if (threadIdx.x == 0) {
    rings.x.init(1, 1);
    rings.low.init(1, 1);
    barrier_init(rings.factors_full, 1);
    barrier_init_done();
  }
  __syncthreads();
  const int slice = int(blockIdx.x) % shape.slices, share = int(blockIdx.x) / shape.slices;
  const auto part = [](int count, int index, int parts) { return int(int64_t(count) * index / parts); };
  const int first_chunk = part(shape.chunks, slice, shape.slices),
            chunks = part(shape.chunks, slice + 1, shape.slices) - first_chunk;
  const int first_tile = part(shape.row_tiles, share, shape.shares),
            tiles = part(shape.row_tiles, share + 1, shape.shares) - first_tile;
  const int group = int(threadIdx.x) / kPeers;
  if (group < kConsumers) {
    registers_grow<P::kBlocks == 1 ? 232 : 104>();
    consume<T, kRank, kProject>(rings, shape, slice, first_chunk, chunks, share, first_tile, tiles, group, memory);
  } else {
    registers_shrink<P::kBlocks == 1 ? 40 : 32>();
    if (threadIdx.x % kPeers == 0) {
      produce<P, kProject>(rings, maps, shape, first_chunk, chunks, first_tile, tiles);
      if (shape.follows == Follows::product && blockIdx.x == gridDim.x - 1) wait_for_previous();
    }
  }
#endif
}

// ---- the sums of parts

constexpr int kSums = 64, kSumGroups = 4;  // of a block: sums of float4s, and threads that share the parts of each

// How many sums of four.
__host__ __device__ int64_t sums_of(const SumTask& task) { return ceil_div(task.rows, kTile) * task.quads * kPeers; }

// The first group of a block's threads gets the sums, each of rows `row` and `row` + 8, columns `col` and `col` + 1.
template <class T>
__global__ void __launch_bounds__(kSums* kSumGroups) sum_kernel(const __grid_constant__ SumTasks tasks) {
  const SumTask& p = tasks.of[blockIdx.y];
  constexpr int kAtOnce = 4;
  __shared__ float4 others[kSumGroups][kSums];
  const int group = int(threadIdx.x) / kSums;
  const int64_t index = int64_t(blockIdx.x) * kSums + threadIdx.x % kSums, step = p.quads * kPeers, size = sums_of(p);
  launch_dependents();
  wait_for_previous();
  const float4* const parts = p.parts + (index / step * p.count * step + index % step);
  float4 total{};
  for (int first = group; index < size && first < p.count; first += kAtOnce * kSumGroups) {
    float4 part[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      part[i] = {};
      if (first + i * kSumGroups < p.count) part[i] = __ldcg(parts + (first + i * kSumGroups) * step);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) add(total, part[i]);
  }
  others[group][threadIdx.x % kSums] = total;
  __syncthreads();
  if (index >= size || group > 0) return;
#pragma unroll
  for (int i = 1; i < kSumGroups; ++i) add(total, others[i][threadIdx.x]);
  const float sums[4] = {total.x, total.y, total.z, total.w};
  const int peer = int(index % kPeers), col = int(index / kPeers % p.quads) * 8 + peer % 4 * 2;
  const int64_t row = index / kPeers / p.quads * kTile + peer / 32 * 16 + peer % 32 / 4;
  const int64_t row_step = p.out.transposed ? 1 : p.out.ld, col_step = p.out.transposed ? p.out.ld : 1;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (row + i / 2 * 8 < p.rows && col + i % 2 < int(p.out.cols))
      static_cast<T*>(p.out.data)[(row + i / 2 * 8) * row_step + (col + i % 2) * col_step] =
          from_float<T>(p.scale * sums[i]);
}

// ---- launches

struct PassPlan {
  int slices = 1, shares = 1;
};

// As many blocks as there are SMs, or fewer; the cost is that of the largest block's tiles, and of the parts.
PassPlan plan_pass(int blocks, int row_tiles, int chunks, int most_chunks, int rank, bool project) {
  PassPlan best;
  double least = std::numeric_limits<double>::infinity();
  for (int slices = ceil_div(chunks, most_chunks); slices <= chunks; ++slices) {
    const int shares = std::clamp(blocks / slices, 1, row_tiles);
    const double tiles = double(ceil_div(chunks, slices)) * ceil_div(row_tiles, shares) * blocks;
    const double parts = (project ? double(slices) * row_tiles : 0.0) + double(shares) * chunks;
    const double bytes = tiles * kTileBytes + parts * kTile * rank * sizeof(float);
    if (bytes < least) best = {slices, shares};
    least = std::min(least, bytes);
  }
  return best;
}

// Behind the product, on the few SMs that it leaves: small blocks, 2 x 8 tiles.
PassPlan plan_behind(int row_tiles, int chunks) { return {ceil_div(chunks, 2), ceil_div(row_tiles, 8)}; }

template <class T>
void add_up(CudaBackend& cuda, const char* name, const SumTasks& tasks, int count) {
  int64_t most = 0;
  for (int i = 0; i < count; ++i) most = std::max(most, sums_of(tasks.of[i]));
  launch(name, cuda.stream(),
         {dim3(unsigned(ceil_div(most, kSums)), unsigned(count)), dim3(kSums * kSumGroups), 0, 1, true}, sum_kernel<T>,
         tasks);
}

template <class T, int kRank, bool kProject>
void launch_pass(CudaBackend& cuda, const Projection* p, const FactorGradient& g, PartialGradients& gradients,
                 Follows follows) {
  using P = Pass<kRank, kProject>;
  PassShape shape{};
  shape.row_tiles = int(ceil_div(g.x.rows, kTile));
  shape.chunks = int(ceil_div(g.x.cols, kTile));
  const PassPlan plan = follows == Follows::product ? plan_behind(shape.row_tiles, shape.chunks)
                                                    : plan_pass(P::kBlocks * cuda.multiprocessors(), shape.row_tiles,
                                                                shape.chunks, P::kMostChunks, kRank, kProject);
  shape.slices = plan.slices;
  shape.shares = plan.shares;
  shape.follows = follows;
  shape.gradient_parts = gradients.add(g, shape.shares, kRank);
  std::optional<Scratch> parts;
  if (kProject) {
    const size_t floats = size_t(shape.row_tiles) * size_t(shape.slices) * kTile * kRank;
    shape.parts = parts.emplace(cuda, floats * sizeof(float)).template as<float4>();
  }
  const PassMaps maps{tensor_map(g.x, kTile, kTile), tensor_map(kProject ? p->f : g.s, kTile, kRank),
                      tensor_map(g.s, kTile, kRank)};
  launch("LoRA pass", cuda.stream(),
         {dim3(unsigned(shape.slices * shape.shares)), dim3(kThreads),
          size_t(P::kStages * kTileBytes + P::kLow + P::kFactors + 1024), 1, true},
         stream_kernel<T, kRank, kProject>, maps, shape);
  if constexpr (kProject)
    add_up<T>(cuda, "LoRA low", {{{shape.parts, p->out, p->x.rows, shape.slices, kRank / 8, p->scale}}}, 1);
}

}  // namespace

float4* PartialGradients::add(const FactorGradient& g, int shares, int ranks) {
  const int64_t chunks = ceil_div(g.x.cols, kTile);
  float4* const parts =
      memory_[count_].emplace(cuda_, size_t(shares * chunks * kTile * ranks) * sizeof(float)).as<float4>();
  tasks_.of[count_++] = {parts, g.out, g.x.cols, shares, ranks / 8, g.scale};
  return parts;
}

void PartialGradients::finish() {
  if (count_ > 0) add_up<float>(cuda_, "LoRA gradients", tasks_, count_);
}

bool stream_fits(const Gpu& gpu, const DeviceMatrix& x, int64_t rank) {
  return gpu.capability() == 90 && rank <= 64 && x.dtype != DType::f32 && !x.transposed && tensor_map_fits(x);
}

void stream(CudaBackend& cuda, const Projection* p, const FactorGradient& g, PartialGradients& gradients,
            Follows follows) {
  const auto launch_with = [&]<class T, int kRank>(Type<T>, std::integral_constant<int, kRank>) {
    if (p)
      launch_pass<T, kRank, true>(cuda, p, g, gradients, follows);
    else
      launch_pass<T, kRank, false>(cuda, p, g, gradients, follows);
  };
  dispatch_16bit(g.x.dtype, [&](auto type) { with_rank_tile(g.s.cols, [&](auto rank) { launch_with(type, rank); }); });
}

}  // namespace wick
