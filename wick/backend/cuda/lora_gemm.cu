// A persistent kernel after Hopper's ways: two warps of a block ask the copy engine for tiles, two warpgroups multiply
// them (wgmma, 64 rows each) and store through shared memory. Two blocks of a cluster work on neighbouring rows and
// share each tile of w. The last steps of the reduction take their tiles from `low` and `f` instead of x and w, and
// multiply as many of the tile's columns as the rank needs.
//
// The columns are cut into tiles of one width and, at their end, of a narrower one, so that the last round of blocks
// is short (plan_gemm).
#include "wick/backend/cuda/lora_gemm.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/ring.cuh"
#include "wick/backend/cuda/device/tile_output.cuh"
#include "wick/backend/cuda/device/wgmma.cuh"
#include "wick/backend/cuda/tensor_map.h"

namespace wick {

namespace {

constexpr int kDepth = 64;  // of a step of the reduction
constexpr int kCluster = 2;
constexpr int kMostStages = 12;
constexpr int kLineBytes = kDepth * 2;  // a row of x or a column of w in a step
                                        // columns that are stored at once
constexpr int kGroups = ExtendedGemm::kMostGroups;
// Of tiles, with two consumers in a block and with three.
template <int kConsumers>
using Widths = std::conditional_t<kConsumers == 2, std::integer_sequence<int, 64, 96, 128, 160, 192, 224, 256>,
                                  std::integer_sequence<int, 128, 192>>;

struct GemmMaps {
  CUtensorMap x, low;
  CUtensorMap w[2], f[kGroups][2];  // for wide and for narrow tiles
};
struct GemmGroup {
  int begin, end;   // columns of y
  int low_at, k16;  // first column of low, and multiples of 16 of them
};
struct GemmShape {
  TileOutput y;
  int rows, steps, row_pairs;  // rows of a block's tile
  int wide, wide_tiles, narrow, narrow_tiles;
  int panel;
  bool follows;  // low comes from the kernel before; those that come after may start once it is there
  int stages, stage_bytes;
  int group_count;
  GemmGroup groups[kGroups];
};

__host__ __device__ constexpr int chunked(int cols) { return (cols + 63) / 64 * 64; }

#ifdef WICK_SM90A

struct Tile {
  int row, col;  // of its first element
  bool narrow;
};
// Wide tiles before narrow ones; panels of `panel` row pairs, column after column.
__device__ __forceinline__ Tile tile_at(int index, const GemmShape& shape, int rank) {
  const bool narrow = index >= shape.row_pairs * shape.wide_tiles;
  if (narrow) index -= shape.row_pairs * shape.wide_tiles;
  const int per_panel = shape.panel * (narrow ? shape.narrow_tiles : shape.wide_tiles);
  const int panel = index / per_panel, within = index % per_panel;
  const int height = min(shape.panel, shape.row_pairs - panel * shape.panel);
  const int col =
      narrow ? shape.wide_tiles * shape.wide + within / height * shape.narrow : within / height * shape.wide;
  return {((panel * shape.panel + within % height) * kCluster + rank) * shape.rows, col, narrow};
}

__device__ __forceinline__ bool touches(const GemmGroup& group, const Tile& tile, const GemmShape& shape) {
  return group.begin < tile.col + (tile.narrow ? shape.narrow : shape.wide) && tile.col < group.end;
}

// Half of a tile of w, or of f, to both blocks.
template <bool kTransposed>
__device__ __forceinline__ void load_shared_tile(uint32_t tile, const CUtensorMap& map, uint32_t full, int depth,
                                                 int col, int cols, int rank) {
  constexpr uint16_t kBoth = 3;
  if constexpr (kTransposed) {  // chunks of 64 columns in turn
    for (int at = rank * 64; at < cols; at += kCluster * 64)
      tma_load(tile + uint32_t(at * kLineBytes), map, full, col + at, depth, kBoth);
  } else {
    const int half = cols / kCluster;
    tma_load(tile + uint32_t(rank * half * kLineBytes), map, full, depth, col + rank * half, kBoth);
  }
}

// A thread asks for the tiles of x and low, another for those of w and f: one alone would be too slow for narrow tiles.
template <bool kTransposed>
__device__ __forceinline__ void produce(Ring ring, const GemmMaps& maps, const GemmShape& shape, bool is_x, int rank,
                                        int first, int stride) {
  bool waited = !shape.follows;
  const uint32_t x_bytes = uint32_t(shape.rows * kLineBytes);
  for (int index = first; index < shape.row_pairs * (shape.wide_tiles + shape.narrow_tiles); index += stride) {
    const Tile tile = tile_at(index, shape, rank);
    const int cols = tile.narrow ? shape.narrow : shape.wide;
    const int bytes = int(x_bytes) + (kTransposed ? chunked(cols) : cols) * kLineBytes;
    const auto load = [&](const CUtensorMap& x, int x_at, const CUtensorMap& w, int w_at, int col) {
      ring.wait_empty();
      if (is_x) {
        tma_load(ring.tiles(), x, ring.full_barrier(), x_at, tile.row);
      } else {
        barrier_expect(ring.full_barrier(), bytes);
        load_shared_tile<kTransposed>(ring.tiles() + x_bytes, w, ring.full_barrier(), w_at, col, cols, rank);
      }
      ring.advance();
    };
    for (int step = 0; step < shape.steps; ++step)
      load(maps.x, step * kDepth, maps.w[tile.narrow], step * kDepth, tile.col);
    for (int g = 0; g < shape.group_count; ++g) {
      const GemmGroup& group = shape.groups[g];
      if (!touches(group, tile, shape)) continue;
      if (!waited && is_x) {
        wait_for_previous();
        launch_dependents();
      }
      waited = true;
      for (int at = 0; at < group.k16 * 16; at += kDepth)
        load(maps.low, group.low_at + at, maps.f[g][tile.narrow], at, tile.col - group.begin);
    }
  }
}

struct Consumer {
  int index;
  Ring ring;
  char* out;  // the warp's 16 rows of 64 columns
};

template <class T, int kCols, bool kTransposed>
__device__ __forceinline__ void consume_tile(Consumer& me, const GemmShape& shape, Tile tile) {
  Ring& ring = me.ring;
  const int peer = threadIdx.x % 128;
  const auto release = [&](int stage) {
    if (peer < kCluster) ring.release(stage, peer);
  };
  const WgmmaOperand<true> x(ring.first + uint32_t(me.index * 64 * kLineBytes));
  const WgmmaOperand<!kTransposed> w(ring.first + uint32_t(shape.rows * kLineBytes));
  float sum[kCols / 2] = {};
  int before = -1;
  for (int step = 0; step < shape.steps; ++step) {
    ring.wait_full();
    const int at = ring.offset();
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) wgmma<T, kTransposed, kCols>(sum, x.at(at, k), w.at(at, k));
    wgmma_commit();
    wgmma_wait<1>();  // the step before is done with its tiles
    if (before >= 0) release(before);
    before = ring.stage;
    ring.advance();
  }
  wgmma_wait<0>();
  release(before);
  for (int g = 0; g < shape.group_count; ++g) {
    if (!touches(shape.groups[g], tile, shape)) continue;
    const int k16s = shape.groups[g].k16;
    for (int k16 = 0; k16 < k16s; ++k16) {
      const int k = k16 % (kDepth / 16);
      if (k == 0) ring.wait_full();
      wgmma_fence();
      wgmma<T, kTransposed, kCols>(sum, x.at(ring.offset(), k), w.at(ring.offset(), k));
      wgmma_commit();
      wgmma_wait<0>();
      if (k + 1 < kDepth / 16 && k16 + 1 < k16s) continue;
      release(ring.stage);
      ring.advance();
    }
  }
  store_rows<T, kCols>(sum, me.out, shape.y, tile.row + me.index * 64, tile.col);
}

template <class T, bool kTransposed, int... kCols>
__device__ __forceinline__ void consume(Consumer me, const GemmShape& shape, int rank, int first, int stride,
                                        std::integer_sequence<int, kCols...>) {
  for (int index = first; index < shape.row_pairs * (shape.wide_tiles + shape.narrow_tiles); index += stride) {
    const Tile tile = tile_at(index, shape, rank);
    const int cols = tile.narrow ? shape.narrow : shape.wide;
    ((cols == kCols ? consume_tile<T, kCols, kTransposed>(me, shape, tile) : void()), ...);
  }
}

#endif  // WICK_SM90A

template <class T, bool kTransposed, int kConsumers>
__global__ void __launch_bounds__(128 * (kConsumers + 1), 1)
    gemm_kernel(const __grid_constant__ GemmMaps maps, const __grid_constant__ GemmShape shape) {
#ifdef WICK_SM90A
  extern __shared__ char memory[];
  __shared__ uint64_t full[kMostStages], empty[kMostStages];
  char* aligned = memory + (-shared_address(memory) & 1023);
  const int rank = int(blockIdx.x) % kCluster, first = int(blockIdx.x) / kCluster, stride = int(gridDim.x) / kCluster;
  const Ring ring{shared_address(aligned) + kConsumers * 4 * kWarpOutBytes, shared_address(full), shared_address(empty),
                  shape.stages, shape.stage_bytes};
  if (!shape.follows) launch_dependents();
  if (threadIdx.x == 0) {
    tma_prefetch(maps.x);
    tma_prefetch(maps.w[0]);
    for (int i = 0; i < shape.stages; ++i) {
      barrier_init(ring.full + 8 * i, 1);
      barrier_init(ring.empty + 8 * i, kConsumers * kCluster);
    }
    barrier_init_done();
  }
  cluster_sync();
  const int group = int(threadIdx.x) / 128;
  if (group == 0) {
    registers_shrink<kConsumers == 2 ? 40 : 32>();
    if (threadIdx.x == 0 || threadIdx.x == 32)
      produce<kTransposed>(ring, maps, shape, threadIdx.x == 0, rank, first, stride);
  } else {
    registers_grow<kConsumers == 2 ? 232 : 160>();
    const Consumer me{group - 1, ring, aligned + (threadIdx.x / 32 - 4) * kWarpOutBytes};
    consume<T, kTransposed>(me, shape, rank, first, stride, Widths<kConsumers>());
  }
  cluster_leave();  // the other block may still arrive at our barriers
#endif
}

// ---- launches

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t pairs_of(int64_t rows, const GemmPlan& plan) {
  return ceil_div(rows, kCluster * 64 * plan.consumers);
}
constexpr int64_t narrow_tiles(int64_t cols, const GemmPlan& plan) {
  return ceil_div(std::max<int64_t>(cols - int64_t(plan.wide) * plan.wide_tiles, 0), plan.narrow);
}

GemmMaps make_maps(const ExtendedGemm& g, const GemmPlan& plan) {
  GemmMaps maps;
  maps.x = tensor_map(g.x, 64 * plan.consumers, kDepth);
  maps.low = tensor_map(g.group_count ? g.low : g.x, 64 * plan.consumers, kDepth);
  for (const bool narrow : {false, true}) {
    const auto shared_tile = [&](const DeviceMatrix& m) {
      return m.transposed ? tensor_map(m, (narrow ? plan.narrow : plan.wide) / kCluster, kDepth)
                          : tensor_map(m, kDepth, 64);
    };
    maps.w[narrow] = shared_tile(g.w);
    for (int i = 0; i < g.group_count; ++i) maps.f[i][narrow] = shared_tile(g.groups[size_t(i)].f);
  }
  return maps;
}

// Besides the stages: what the warps store through, and what aligning costs.
constexpr int out_bytes(const GemmPlan& plan) { return plan.consumers * 4 * kWarpOutBytes + 1024; }

GemmShape make_shape(const ExtendedGemm& g, const GemmPlan& plan) {
  const int shared_bytes = 227 * 1024 - 2 * kMostStages * int(sizeof(uint64_t)) - out_bytes(plan);
  GemmShape shape{};
  shape.y = {g.y.data, g.y.ld, int(g.y.rows), int(g.y.cols), g.bias};
  shape.steps = int((g.x.cols + kDepth - 1) / kDepth);
  shape.rows = 64 * plan.consumers;
  shape.row_pairs = int(pairs_of(g.y.rows, plan));
  shape.wide = plan.wide;
  shape.wide_tiles = plan.wide_tiles;
  shape.narrow = plan.narrow;
  shape.narrow_tiles = int(narrow_tiles(g.y.cols, plan));
  shape.panel = plan.panel;
  shape.stage_bytes =
      plan.consumers * 64 * kLineBytes + chunked(plan.wide_tiles ? plan.wide : plan.narrow) * kLineBytes;
  shape.stages = std::min(kMostStages, shared_bytes / shape.stage_bytes);
  shape.group_count = g.group_count;
  int64_t begin = 0;
  for (int i = 0; i < g.group_count; ++i) {
    const auto& [f, low_at] = g.groups[size_t(i)];
    shape.groups[i] = {int(begin), int(begin + f.cols), int(low_at), int((f.rows + 15) / 16)};
    begin += f.cols;
  }
  return shape;
}

// No more clusters than the rounds need: what runs beside the product gets the rest.
int clusters_of(const CudaBackend& cuda, const GemmShape& shape) {
  const int most = cuda.multiprocessors() / kCluster, wide = shape.row_pairs * shape.wide_tiles,
            all = wide + shape.row_pairs * shape.narrow_tiles;
  if (wide > 0 && all > wide) return std::min(most, all);
  return int(ceil_div(all, ceil_div(all, most)));
}

template <class T, bool kTransposed, int kConsumers>
void launch_gemm(CudaBackend& cuda, const ExtendedGemm& g, bool follows, const GemmPlan& plan) {
  GemmShape shape = make_shape(g, plan);
  shape.follows = follows && g.group_count > 0;
  const size_t bytes = size_t(out_bytes(plan) + shape.stages * shape.stage_bytes);
  const dim3 grid(unsigned(clusters_of(cuda, shape) * kCluster)), block(128 * (kConsumers + 1));
  launch("LoRA product", cuda.stream(), {grid, block, bytes, kCluster, follows},
         gemm_kernel<T, kTransposed, kConsumers>, make_maps(g, plan), shape);
}

// Clock cycles, measured: what the tensor cores need for the steps of a tile, or the copy engine if the tile is narrow,
// and its start and end.
double tile_cycles(const ExtendedGemm& g, int consumers, int width) {
  const int64_t rank = g.group_count ? g.groups[0].f.rows : 0;
  const int loaded = g.w.transposed ? width : chunked(width);
  const double step = std::max(2.0 * consumers * width, 130.0 * consumers + 2.0 * loaded + (loaded > width ? 80 : 0));
  return (double(g.x.cols) + double(rank)) / kDepth * step + 4.5 * consumers * width + 1900;
}

// What the busiest cluster has to do: the first, or the first that has a tile less.
double plan_cycles(const CudaBackend& cuda, const ExtendedGemm& g, const GemmPlan& plan) {
  const int64_t pairs = pairs_of(g.y.rows, plan), clusters = cuda.multiprocessors() / kCluster;
  const int64_t wide = pairs * plan.wide_tiles, all = wide + pairs * narrow_tiles(g.y.cols, plan);
  const double wide_cycles = tile_cycles(g, plan.consumers, plan.wide),
               narrow_cycles = tile_cycles(g, plan.consumers, plan.narrow);
  double most = 0;
  for (const int64_t c : {int64_t{0}, wide % clusters, all % clusters}) {
    const int64_t wides = wide / clusters + (c < wide % clusters);
    const int64_t narrows = all / clusters + (c < all % clusters) - wides;
    most = std::max(most, double(wides) * wide_cycles + double(narrows) * narrow_cycles);
  }
  return most;
}

template <int... kCols>
std::array<int, sizeof...(kCols)> as_array(std::integer_sequence<int, kCols...>) {
  return {kCols...};
}

template <int kConsumers>
void consider_plans(const CudaBackend& cuda, const ExtendedGemm& g, GemmPlan& best, double& least) {
  const auto consider = [&](int wide, int64_t wide_tiles, int narrow) {
    const GemmPlan plan{.consumers = kConsumers, .wide = wide, .wide_tiles = int(wide_tiles), .narrow = narrow};
    const double cycles = plan_cycles(cuda, g, plan);
    if (cycles < least) best = plan;
    least = std::min(least, cycles);
  };
  const int64_t pairs = pairs_of(g.y.rows, {.consumers = kConsumers}), clusters = cuda.multiprocessors() / kCluster;
  for (const int wide : as_array(Widths<kConsumers>())) {
    const int64_t tiles = ceil_div(g.y.cols, wide);
    consider(wide, tiles, wide);
    for (int64_t rounds = 1; rounds * clusters < pairs * tiles; ++rounds)
      for (const int narrow : as_array(Widths<kConsumers>()))
        if (narrow < wide) consider(wide, rounds * clusters / pairs, narrow);
  }
}

}  // namespace

bool extended_gemm_fits(const CudaBackend& cuda, const ExtendedGemm& g) {
  if (cuda.capability() != 90 || g.y.cols % 8 || g.y.transposed || g.x.transposed || g.low.transposed) return false;
  const auto fits = [&](const DeviceMatrix& m) { return !m.data || (m.dtype == g.y.dtype && tensor_map_fits(m)); };
  for (const DeviceMatrix& m : {g.y, g.x, g.w, g.low})
    if (!fits(m)) return false;
  for (int i = 0; i < g.group_count; ++i)
    if (const DeviceMatrix& f = g.groups[size_t(i)].f; !fits(f) || f.transposed != g.w.transposed) return false;
  return true;
}

GemmPlan plan_gemm(const CudaBackend& cuda, const ExtendedGemm& g) {
  GemmPlan best;
  double least = std::numeric_limits<double>::infinity();
  consider_plans<2>(cuda, g, best, least);
  consider_plans<3>(cuda, g, best, least);
  return best;
}

void extended_gemm(CudaBackend& cuda, const ExtendedGemm& g, bool follows) {
  extended_gemm(cuda, g, follows, plan_gemm(cuda, g));
}

void extended_gemm(CudaBackend& cuda, const ExtendedGemm& g, bool follows, const GemmPlan& plan) {
  const auto launch_as = [&]<class T, int kConsumers>(Type<T>, std::integral_constant<int, kConsumers>) {
    if (g.w.transposed)
      launch_gemm<T, false, kConsumers>(cuda, g, follows, plan);
    else
      launch_gemm<T, true, kConsumers>(cuda, g, follows, plan);
  };
  const auto with_type = [&](auto type) {
    if (plan.consumers == 2)
      launch_as(type, std::integral_constant<int, 2>());
    else
      launch_as(type, std::integral_constant<int, 3>());
  };
  if (g.y.dtype == DType::bf16)
    with_type(Type<bf16>());
  else
    with_type(Type<f16>());
}

}  // namespace wick
