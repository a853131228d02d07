// A persistent GEMM for Hopper: two warps of a block issue TMA loads of tiles, two warpgroups multiply them (wgmma, 64
// rows each) and store through shared memory. Two blocks of a cluster work on neighbouring rows and share each tile of
// w by multicast. The last steps of the reduction take their tiles from `low` and `f` instead of x and w, and multiply
// as many of the tile's columns as the rank needs.
//
// A tile is stored while the tensor cores are busy with the next one. For SwiGLU one block of a cluster loads the
// weights of gates and the other those of their values, so that a thread has both among its sums.
//
// With a slice there is no launch for low: p's columns lie beside those of w in a stage, so that the same instructions
// give x p as further accumulators. Packed, they are an operand of wgmma as they stand. Where there are too few tiles
// for the device, clusters of two or four pairs split a reduction (split-K): each pair has its part of the steps, and
// multiplies f with its part of x p; then the parts of y are added through each other's shared memory, in their order.
//
// The columns are cut into tiles of one width and, at their end, of a narrower one, so that the last round of blocks
// is short (plan_gemm_sm90).
#include "wick/backend/cuda/linear/extended_gemm.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/epilogue.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/ring.cuh"
#include "wick/backend/cuda/device/wgmma.cuh"
#include "wick/backend/cuda/linear/lora_products.h"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"
#include "wick/backend/cuda/runtime/tensor_map.h"
#include "wick/backend/cuda/runtime/ways.h"

namespace wick {

namespace {

constexpr int kDepth = 64;  // of a step of the reduction
constexpr int kCluster = 2;
constexpr int kMostStages = 12;
constexpr int kLineBytes = kDepth * 2;  // a row of x or a column of w in a step
constexpr int kGroups = ExtendedGemm::kMostGroups;
constexpr int kMostParts = 4, kMostSlice = 64;
constexpr int kPartColBytes = 512;  // of a column of y, or of x p, in the exchange of parts: two consumers' rows in f32
// The epilogue of a tile's sums: they are stored at once, or added to those of other parts, or stored while the tensor
// cores are busy with the next tile, as they are (behind) or through SwiGLU (gated). Kernels of their own, since ptxas
// lets the products of one that could exchange parts wait for each other (C7514).
enum class Form { whole, parts, behind, gated };
// The widths of tiles, with two consumers in a block and with three.
template <int kConsumers, int kSlice>
using Widths =
    std::conditional_t<kConsumers == 3, std::integer_sequence<int, 128, 192>,
                       std::conditional_t<kSlice == 0, std::integer_sequence<int, 64, 96, 128, 160, 192, 224, 256>,
                                          std::integer_sequence<int, 64, 96, 128, 160, 192>>>;

using GatedWidths = std::integer_sequence<int, 128, 160, 192, 224, 256>;  // gates and values
constexpr int kBehindSteps = 256 / 32;  // of the reduction, in which the tile before is stored

struct GemmMaps {
  CUtensorMap x, low;
  CUtensorMap w[2], f[kGroups][2];  // for wide and for narrow tiles
  CUtensorMap p[kGroups];
};
struct GemmGroup {
  int begin, end;   // columns of y
  int low_at, k16;  // first column of low, and multiples of 16 of them
  int s_end;        // of its columns of s
};
struct GemmShape {
  TileOutput y;
  int rows, steps, row_pairs;  // rows of a block's tile
  int wide, wide_tiles, narrow, narrow_tiles;
  int panel;
  bool follows;  // low comes from the kernel before; those that come after may start once it is there
  int parts;
  TileOutput s;
  float s_scale, low_scale;
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

// A block's place in its cluster: its rows of a pair, and the pair's part of the reduction.
struct Place {
  int half, part;
  __device__ __forceinline__ explicit Place(int rank) : half(rank % kCluster), part(rank / kCluster) {}
  __device__ __forceinline__ int pair() const { return part * kCluster; }  // its first rank
  __device__ __forceinline__ uint16_t both() const { return uint16_t(3 << pair()); }
};

struct Steps {
  int begin, end;
};
// A part of the reduction.
__device__ __forceinline__ Steps steps_of(const GemmShape& shape, const Place& place) {
  return {shape.steps * place.part / shape.parts, shape.steps * (place.part + 1) / shape.parts};
}

// Half of a tile of w, or of f, to both blocks; the second half begins `apart` columns behind the first.
template <bool kTransposed>
__device__ __forceinline__ void load_shared_tile(uint32_t tile, const CUtensorMap& map, uint32_t full, int depth,
                                                 int col, int cols, int apart, const Place& place) {
  if constexpr (kTransposed) {  // chunks of 64 columns in turn
    for (int at = place.half * 64; at < cols; at += kCluster * 64)
      tma_load(tile + uint32_t(at * kLineBytes), map, full, col + at, depth, place.both());
  } else {
    const int half = cols / kCluster;
    tma_load(tile + uint32_t(place.half * half * kLineBytes), map, full, depth, col + place.half * apart, place.both());
  }
}

// A step of p: a chunk of 64 columns, or its columns by rows.
template <bool kTransposed, int kSlice>
constexpr int kSliceBytes = (kTransposed ? 64 : kSlice) * kLineBytes;

// One thread issues TMA loads for the tiles of x and low, another for those of w, p and f: one alone would be too slow
// for narrow tiles.
template <bool kTransposed, int kSlice, Form kForm>
__device__ __forceinline__ void produce(Ring ring, const GemmMaps& maps, const GemmShape& shape, bool is_x,
                                        const Place& place, int first, int stride) {
  constexpr bool kGated = kForm == Form::gated;
  if constexpr (kSlice > 0 || kGated) {
    wait_for_previous();
    launch_dependents();
  }
  bool waited = !shape.follows;
  const uint32_t x_bytes = uint32_t(shape.rows * kLineBytes);
  for (int index = first; index < shape.row_pairs * (shape.wide_tiles + shape.narrow_tiles); index += stride) {
    const Tile tile = tile_at(index, shape, place.half);
    const int cols = tile.narrow ? shape.narrow : shape.wide;
    const uint32_t w_bytes = uint32_t((kTransposed ? chunked(cols) : cols) * kLineBytes);
    const auto load = [&](const CUtensorMap* x, int x_at, const CUtensorMap& w, int w_at, int col,
                          const CUtensorMap* p = nullptr) {
      ring.wait_empty();
      if (is_x) {
        if (x) tma_load(ring.tiles(), *x, ring.full_barrier(), x_at, tile.row);
      } else {
        const uint32_t p_bytes = kSlice && p ? kSliceBytes<kTransposed, kSlice> : 0;
        barrier_expect(ring.full_barrier(), int((x ? x_bytes : 0) + w_bytes + p_bytes));
        load_shared_tile<kTransposed>(ring.tiles() + x_bytes, w, ring.full_barrier(), w_at, col, cols,
                                      kGated ? shape.y.cols : cols / kCluster, place);
        if constexpr (kSlice > 0) {
          if (p && ring.stage % kCluster == place.half)  // in turns, since it is small
            tma_load(ring.tiles() + x_bytes + w_bytes, *p, ring.full_barrier(), kTransposed ? 0 : w_at,
                     kTransposed ? w_at : 0, place.both());
        }
      }
      ring.advance();
    };
    const auto load_step = [&](int step, const CUtensorMap* p = nullptr) {
      load(&maps.x, step * kDepth, maps.w[tile.narrow], step * kDepth, kGated ? tile.col / 2 : tile.col, p);
    };
    if constexpr (kSlice == 0) {
      for (int step = 0; step < shape.steps; ++step) load_step(step);
    }
    for (int g = 0; g < shape.group_count; ++g) {
      const GemmGroup& group = shape.groups[g];
      if (!touches(group, tile, shape)) continue;
      if constexpr (kSlice > 0) {
        const Steps steps = steps_of(shape, place);
        for (int step = steps.begin; step < steps.end; ++step) load_step(step, &maps.p[g]);
        load(nullptr, 0, maps.f[g][tile.narrow], 0, tile.col - group.begin);
      } else {
        if (!waited && is_x) {
          wait_for_previous();
          launch_dependents();
        }
        waited = true;
        for (int at = 0; at < group.k16 * 16; at += kDepth)
          load(&maps.low, group.low_at + at, maps.f[g][tile.narrow], at, tile.col - group.begin);
      }
    }
  }
}

struct Consumer {
  int index;
  Ring ring;
  char* out;  // the warp's 16 rows of 64 columns
  Place place;
  float4* heap;       // where the ring's tiles begin
  uint64_t* arrived;  // counts the bytes of parts

  __device__ __forceinline__ void release(int stage) const {
    const int peer = threadIdx.x % 128;
    if (peer < kCluster) ring.release(stage, place.pair() + peer);
  }
};

// Parts of a sum in shared memory: for each part, consumer's warp and eight columns a float4 of each lane.
template <int kEights>
__device__ __forceinline__ float4* part_at(float4* heap, int part, int eight) {
  return heap + ((part * 8 + threadIdx.x / 32 - 4) * kEights + eight) * 32 + threadIdx.x % 32;
}
__device__ __forceinline__ void add_part(float* d, const float4& part) {
  d[0] += part.x;
  d[1] += part.y;
  d[2] += part.z;
  d[3] += part.w;
}

// Each pair adds up the parts of kCols / kParts columns of y and stores them, the first one all of s. The ring is free:
// with several parts a cluster has one tile.
template <class T, int kCols, int kSlice, int kParts>
__device__ __forceinline__ void share_parts(const Consumer& me, const GemmShape& shape, const Tile& tile,
                                            const float* sum, TileOutput s, int low_at, bool stores_s) {
  constexpr int kEights = kCols / kParts / 8, kLowEights = kSlice / 8;
  const Place& place = me.place;
  float4* const lows = me.heap + kCols * kPartColBytes / int(sizeof(float4));
  const float* low = sum + kCols / 2;
  const bool first = place.part == 0;
  const auto send = [&](float4* local, const float* d, int part) {
    push(reinterpret_cast<float*>(local), make_float4(d[0], d[1], d[2], d[3]), me.arrived,
         part * kCluster + place.half);
  };
  if (threadIdx.x == 128)
    barrier_expect(me.arrived, (kCols + (stores_s && first ? (kParts - 1) * kSlice : 0)) * kPartColBytes);
  cluster_leave();  // all are done with their tiles
#pragma unroll
  for (int j = 0; j < kCols / 8; ++j)
    send(part_at<kEights>(me.heap, place.part, j % kEights), sum + j * 4, j / kEights);
  if (stores_s && !first) {
#pragma unroll
    for (int j = 0; j < kLowEights; ++j) send(part_at<kLowEights>(lows, place.part - 1, j), low + j * 4, 0);
  }
  barrier_wait_cluster(me.arrived, 0);
  float own[kCols / kParts / 2] = {};
#pragma unroll
  for (int part = 0; part < kParts; ++part)
#pragma unroll
    for (int j = 0; j < kEights; ++j) add_part(own + j * 4, *part_at<kEights>(me.heap, part, j));
  store_rows<T, kCols / kParts>(own, me.out, shape.y, tile.row + me.index * 64,
                                tile.col + place.part * (kCols / kParts));
  if (!stores_s || !first) return;
  float whole[kSlice / 2];
#pragma unroll
  for (int i = 0; i < kSlice / 2; ++i) whole[i] = low[i];
#pragma unroll
  for (int part = 1; part < kParts; ++part)
#pragma unroll
    for (int j = 0; j < kLowEights; ++j) add_part(whole + j * 4, *part_at<kLowEights>(lows, part - 1, j));
#pragma unroll
  for (float& v : whole) v *= shape.s_scale;
  store_rows<T, kSlice>(whole, me.out, s, tile.row + me.index * 64, low_at);
}

// sum += low f, with low = x p from the accumulators behind those of y, rounded; f is in the ring's next stage.
template <class T, int kCols, bool kTransposed, int kSlice>
__device__ __forceinline__ void multiply_slice(Consumer& me, float (&sum)[(kCols + kSlice) / 2], float scale,
                                               const WgmmaOperand<!kTransposed>& f) {
  const float* const low = sum + kCols / 2;
  uint32_t a[kSlice / 16][4];
#pragma unroll
  for (int i = 0; i < kSlice / 4; ++i) a[i / 4][i % 4] = pack<T>(low[2 * i] * scale, low[2 * i + 1] * scale);
  me.ring.wait_full();
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSlice / 16; ++k) wgmma<T, kTransposed, kCols>(sum, a[k], f.at(me.ring.offset(), k));
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_arrived(sum);
  me.release(me.ring.stage);
  me.ring.advance();
}
// The same with low from memory, k16s steps of 16 ranks in as many stages as they take.
template <class T, int kCols, bool kTransposed>
__device__ __forceinline__ void multiply_low(Consumer& me, float* sum, int k16s, const WgmmaOperand<true>& low,
                                             const WgmmaOperand<!kTransposed>& f) {
  for (int k16 = 0; k16 < k16s; ++k16) {
    const int k = k16 % (kDepth / 16);
    if (k == 0) me.ring.wait_full();
    wgmma_fence();
    wgmma<T, kTransposed, kCols>(sum, low.at(me.ring.offset(), k), f.at(me.ring.offset(), k));
    wgmma_commit();
    wgmma_wait<0>();
    if (k + 1 < kDepth / 16 && k16 + 1 < k16s) continue;
    me.release(me.ring.stage);
    me.ring.advance();
  }
}

template <class T, int kCols, bool kTransposed, int kSlice, Form kForm>
__device__ __forceinline__ void consume_tile(Consumer& me, const GemmShape& shape, Tile tile) {
  Ring& ring = me.ring;
  const WgmmaOperand<true> x(ring.first + uint32_t(me.index * 64 * kLineBytes));
  const WgmmaOperand<!kTransposed> w(ring.first + uint32_t(shape.rows * kLineBytes));
  constexpr int kWidth = kTransposed ? chunked(kCols) : kCols;  // of w in a stage; p follows
  constexpr bool kBeside = kWidth == kCols;                     // so that one instruction takes both
  float sum[(kCols + kSlice) / 2] = {};
  const auto multiply = [&](int begin, int end) {
    int before = -1;
    for (int step = begin; step < end; ++step) {
      ring.wait_full();
      const int at = ring.offset();
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
        wgmma<T, kTransposed, kBeside ? kCols + kSlice : kCols>(sum, x.at(at, k), w.at(at, k));
        if constexpr (!kBeside && kSlice > 0)
          wgmma<T, kTransposed, kSlice>(sum + kCols / 2, x.at(at, k), w.at(at + kWidth * kLineBytes, k));
      }
      wgmma_commit();
      wgmma_wait<1>();  // the step before is done with its tiles
      if (before >= 0) me.release(before);
      before = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    wgmma_arrived(sum);
    if (before >= 0) me.release(before);
  };
  if constexpr (kSlice == 0) multiply(0, shape.steps);
  bool stores_s = false;
  TileOutput s = shape.s;
  int low_at = 0;
  for (int g = 0; g < shape.group_count; ++g) {
    const GemmGroup& group = shape.groups[g];
    if (!touches(group, tile, shape)) continue;
    if constexpr (kSlice > 0) {
      float* const low = sum + kCols / 2;
      const Steps steps = steps_of(shape, me.place);
      multiply(steps.begin, steps.end);
      multiply_slice<T, kCols, kTransposed, kSlice>(me, sum, shape.low_scale, w);
      stores_s = shape.s.data && tile.col == group.begin;
      s.cols = group.s_end;
      low_at = group.low_at;
      if (shape.parts > 1 || !stores_s) continue;
      float scaled[kSlice / 2];
#pragma unroll
      for (int i = 0; i < kSlice / 2; ++i) scaled[i] = low[i] * shape.s_scale;
      store_rows<T, kSlice>(scaled, me.out, s, tile.row + me.index * 64, low_at);
    } else {
      multiply_low<T, kCols, kTransposed>(me, sum, group.k16, x, w);
    }
  }
  if constexpr (kForm == Form::parts && kCols % 32 == 0)
    if (shape.parts == 2) return share_parts<T, kCols, kSlice, 2>(me, shape, tile, sum, s, low_at, stores_s);
  if constexpr (kForm == Form::parts && kCols % 64 == 0)
    if (shape.parts == 4) return share_parts<T, kCols, kSlice, 4>(me, shape, tile, sum, s, low_at, stores_s);
  store_rows<T, kCols>(sum, me.out, shape.y, tile.row + me.index * 64, tile.col);
}

template <class T, bool kTransposed, int kSlice, Form kForm, int... kCols>
__device__ __forceinline__ void consume(Consumer me, const GemmShape& shape, int first, int stride,
                                        std::integer_sequence<int, kCols...>) {
  for (int index = first; index < shape.row_pairs * (shape.wide_tiles + shape.narrow_tiles); index += stride) {
    const Tile tile = tile_at(index, shape, me.place.half);
    const int cols = tile.narrow ? shape.narrow : shape.wide;
    ((cols == kCols ? consume_tile<T, kCols, kTransposed, kSlice, kForm>(me, shape, tile) : void()), ...);
  }
}

// Tiles from `index` to `end`, all of kCols columns, each stored during the next one's first steps; the index of the
// one that follows.
template <class T, int kCols, bool kTransposed, Form kForm>
__device__ __forceinline__ int consume_behind(Consumer& me, const GemmShape& shape, int index, int end, int stride) {
  constexpr bool kGated = kForm == Form::gated;
  Ring& ring = me.ring;
  const WgmmaOperand<true> x(ring.first + uint32_t(me.index * 64 * kLineBytes));
  const WgmmaOperand<!kTransposed> w(ring.first + uint32_t(shape.rows * kLineBytes));
  std::conditional_t<kGated, GatedTile<T, kCols>, PlainTile<T, kCols>> last;
  for (; index < end; index += stride) {
    float sum[kCols / 2] = {};
    int before = -1;
    const auto multiply = [&](auto&& meanwhile) {
      ring.wait_full();
      const int at = ring.offset();
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) wgmma<T, kTransposed, kCols>(sum, x.at(at, k), w.at(at, k));
      wgmma_commit();
      meanwhile();
      wgmma_wait<1>();
      if (before >= 0) me.release(before);
      before = ring.stage;
      ring.advance();
    };
#pragma unroll
    for (int part = 0; part < last.kParts; ++part) multiply([&] { last.store(part, me.out, shape.y); });
    for (int step = last.kParts; step < shape.steps; ++step) multiply([] {});
    const Tile tile = tile_at(index, shape, me.place.half);
    wgmma_wait<0>();
    wgmma_arrived(sum);
    me.release(before);
    for (int g = 0; g < shape.group_count && !kGated; ++g)
      if (touches(shape.groups[g], tile, shape))
        multiply_low<T, kCols, kTransposed>(me, sum, shape.groups[g].k16, x, w);
    wgmma_arrived(sum);
    last.take(sum, shape.y, tile.row + me.index * 64, kGated ? tile.col / 2 : tile.col);
  }
#pragma unroll
  for (int part = 0; part < last.kParts; ++part) last.store(part, me.out, shape.y);
  return index;
}

template <class T, bool kTransposed, Form kForm, int... kCols>
__device__ __forceinline__ void consume_behind(Consumer me, const GemmShape& shape, int index, int stride,
                                               std::integer_sequence<int, kCols...>) {
  for (int narrow = 0; narrow < 2; ++narrow) {
    const int cols = narrow ? shape.narrow : shape.wide,
              end = shape.row_pairs * (shape.wide_tiles + (narrow ? shape.narrow_tiles : 0));
    ((cols == kCols ? void(index = consume_behind<T, kCols, kTransposed, kForm>(me, shape, index, end, stride))
                    : void()),
     ...);
  }
}

// The maps are some way off: each lane asks for one of those that will be read.
template <int kSlice>
__device__ __forceinline__ void prefetch_maps(const GemmMaps& maps, const GemmShape& shape, int lane) {
  if (lane == 0) tma_prefetch(maps.x);
  if (lane < 2) tma_prefetch(maps.w[lane]);
  if (lane == 2) tma_prefetch(maps.low);
  if (lane < 2 * shape.group_count) tma_prefetch(maps.f[lane / 2][lane % 2]);
  if (kSlice > 0 && lane < shape.group_count) tma_prefetch(maps.p[lane]);
}

#endif  // WICK_SM90A

template <class T, bool kTransposed, int kConsumers, int kSlice, Form kForm>
__global__ void __launch_bounds__(128 * (kConsumers + 1), 1)
    gemm_kernel(const __grid_constant__ GemmMaps maps, const __grid_constant__ GemmShape shape) {
#ifdef WICK_SM90A
  extern __shared__ char memory[];
  __shared__ uint64_t full[kMostStages], empty[kMostStages], arrived;
  char* aligned = memory + (-shared_address(memory) & 1023);
  const int cluster = kSlice ? kCluster * shape.parts : kCluster;
  const int first = int(blockIdx.x) / cluster, stride = int(gridDim.x) / cluster;
  const Place place(int(blockIdx.x) % cluster);
  const Ring ring{shared_address(aligned) + kConsumers * 4 * kWarpOutBytes, shared_address(full), shared_address(empty),
                  shape.stages, shape.stage_bytes};
  if (kSlice == 0 && kForm != Form::gated && !shape.follows) launch_dependents();
  if (threadIdx.x >= 32 && threadIdx.x < 64) prefetch_maps<kSlice>(maps, shape, threadIdx.x - 32);
  if (threadIdx.x == 0) {
    for (int i = 0; i < shape.stages; ++i) {
      barrier_init(ring.full + 8 * i, 1);
      barrier_init(ring.empty + 8 * i, kConsumers * kCluster);
    }
    barrier_init(&arrived, 1);
    barrier_init_done();
  }
  cluster_leave();  // the barriers are there
  const int group = int(threadIdx.x) / 128;
  if (group == 0) {
    registers_shrink<kConsumers == 2 ? 40 : 32>();
    if (threadIdx.x == 0 || threadIdx.x == 32)
      produce<kTransposed, kSlice, kForm>(ring, maps, shape, threadIdx.x == 0, place, first, stride);
    if constexpr (kForm == Form::parts) {  // with the consumers, when they exchange parts
      __syncwarp();
      cluster_leave();
    }
  } else {
    registers_grow<kConsumers == 2 ? 232 : 160>();
    char* const tiles = aligned + kConsumers * 4 * kWarpOutBytes;
    const Consumer me{
        group - 1, ring, aligned + (threadIdx.x / 32 - 4) * kWarpOutBytes, place, reinterpret_cast<float4*>(tiles),
        &arrived};
    if constexpr (kForm == Form::gated)
      consume_behind<T, kTransposed, kForm>(me, shape, first, stride, GatedWidths());
    else if constexpr (kForm == Form::behind)
      consume_behind<T, kTransposed, kForm>(me, shape, first, stride, Widths<kConsumers, kSlice>());
    else
      consume<T, kTransposed, kSlice, kForm>(me, shape, first, stride, Widths<kConsumers, kSlice>());
  }
  cluster_leave();  // the cluster's other blocks may still arrive at our barriers
#endif
}

// ---- launches

constexpr int64_t pairs_of(int64_t rows, const GemmPlan& plan) {
  return ceil_div(rows, kCluster * 64 * plan.consumers);
}
constexpr int64_t narrow_tiles(int64_t cols, const GemmPlan& plan) {
  return ceil_div(std::max<int64_t>(cols - int64_t(plan.wide) * plan.wide_tiles, 0), plan.narrow);
}

// Whether a tile is stored during the first steps of the next: the sums of both must fit a thread's registers.
constexpr bool stores_behind(const ExtendedGemm& g, const GemmPlan& plan) {
  return g.gated || (plan.consumers == 2 && !plan.slice && g.x.cols > (kBehindSteps - 1) * kDepth);
}

GemmMaps make_maps(const ExtendedGemm& g, const GemmPlan& plan) {
  GemmMaps maps;
  maps.x = tensor_map(g.x, 64 * plan.consumers, kDepth);
  maps.low = tensor_map(g.group_count && !plan.slice ? g.low : g.x, 64 * plan.consumers, kDepth);
  for (const bool narrow : {false, true}) {
    const auto shared_tile = [&](const DeviceMatrix& m) {
      return m.transposed ? tensor_map(m, (narrow ? plan.narrow : plan.wide) / kCluster, kDepth)
                          : tensor_map(m, kDepth, 64);
    };
    maps.w[narrow] = shared_tile(g.w);
    for (int i = 0; i < g.group_count; ++i) maps.f[i][narrow] = shared_tile(g.groups[i].f);
  }
  for (int i = 0; i < g.group_count && plan.slice; ++i) {
    const DeviceMatrix& p = g.groups[i].p;
    maps.p[i] = p.transposed ? tensor_map(p, plan.slice, kDepth) : tensor_map(p, kDepth, 64);
  }
  return maps;
}

// Besides the stages: the warps' staging for stores, and the cost of alignment.
constexpr int out_bytes(const GemmPlan& plan) { return plan.consumers * 4 * kWarpOutBytes + 1024; }
constexpr int stages_bytes(const GemmPlan& plan) {
  return 227 * 1024 - (2 * kMostStages + 1) * int(sizeof(uint64_t)) - out_bytes(plan);
}
int stage_bytes(const ExtendedGemm& g, const GemmPlan& plan) {
  const int slice = plan.slice && !g.w.transposed ? 64 : plan.slice;
  return (plan.consumers * 64 + chunked(plan.wide_tiles ? plan.wide : plan.narrow) + slice) * kLineBytes;
}

GemmShape make_shape(const ExtendedGemm& g, const GemmPlan& plan) {
  GemmShape shape{};
  shape.y = {g.y.data, g.y.ld, int(g.y.rows), int(g.y.cols), g.bias, g.residual.data, g.residual.ld};
  shape.s = {g.s.data, g.s.ld, int(g.y.rows), int(g.s.cols), nullptr};
  shape.s_scale = g.s_scale;
  shape.low_scale = g.low_scale;
  shape.steps = int(ceil_div(g.x.cols, kDepth));
  shape.rows = 64 * plan.consumers;
  shape.row_pairs = int(pairs_of(g.y.rows, plan));
  shape.wide = plan.wide;
  shape.wide_tiles = plan.wide_tiles;
  shape.narrow = plan.narrow;
  shape.narrow_tiles = int(narrow_tiles(g.w.cols, plan));
  shape.panel = plan.panel;
  shape.parts = plan.parts;
  shape.stage_bytes = stage_bytes(g, plan);
  shape.stages = std::min(kMostStages, stages_bytes(plan) / shape.stage_bytes);
  shape.group_count = g.group_count;
  shape.follows = g.group_count > 0 && !plan.slice;
  for (int i = 0; i < g.group_count; ++i) {
    const auto& [f, column, low_at, p] = g.groups[i];
    shape.groups[i] = {.begin = int(column),
                       .end = int(column + f.cols),
                       .low_at = int(low_at),
                       .k16 = int(ceil_div(f.rows, 16)),
                       .s_end = int(g.group_count == 1 ? g.s.cols : low_at + f.rows)};
  }
  return shape;
}

// Clusters that run at once. Those of more than two blocks leave SMs over in each of the device's partitions: on an
// H100 there is room for 28 of four and 12 of eight.
int64_t most_clusters(const Gpu& gpu, const GemmPlan& plan) {
  const int64_t pairs = gpu.multiprocessors() / kCluster;
  return plan.parts == 1 ? pairs : plan.parts == 2 ? pairs * 14 / 33 : pairs * 2 / 11;
}

// No more clusters than the waves need: kernels beside the product get the rest. A cluster of several parts has one
// tile.
int64_t clusters_of(const Gpu& gpu, const GemmShape& shape, const GemmPlan& plan) {
  const int64_t most = most_clusters(gpu, plan), wide = shape.row_pairs * shape.wide_tiles,
                all = wide + shape.row_pairs * shape.narrow_tiles;
  if (plan.parts > 1) return all;
  if (wide > 0 && all > wide) return std::min(most, all);
  return ceil_div(all, ceil_div(all, most));
}

using GemmKernel = void (*)(GemmMaps, GemmShape);

void launch_kernel(CudaBackend& cuda, const ExtendedGemm& g, const GemmPlan& plan, GemmKernel kernel) {
  const GemmShape shape = make_shape(g, plan);
  const int cluster = kCluster * plan.parts;
  const size_t bytes = size_t(out_bytes(plan) + shape.stages * shape.stage_bytes);
  const dim3 grid(unsigned(clusters_of(cuda, shape, plan) * cluster)), block(128 * (unsigned(plan.consumers) + 1));
  const bool overlap = shape.follows || plan.slice > 0 || g.gated;
  launch("extended product", cuda.stream(), {grid, block, bytes, cluster, overlap}, kernel, make_maps(g, plan), shape);
}

template <class T, bool kTransposed, int kConsumers, int kSlice>
void launch_gemm(CudaBackend& cuda, const ExtendedGemm& g, const GemmPlan& plan) {
  constexpr Form kParts = kSlice > 0 ? Form::parts : Form::whole;
  constexpr Form kBehind = kSlice == 0 && kConsumers == 2 ? Form::behind : Form::whole;
  launch_kernel(cuda, g, plan,
                plan.parts > 1           ? gemm_kernel<T, kTransposed, kConsumers, kSlice, kParts>
                : stores_behind(g, plan) ? gemm_kernel<T, kTransposed, kConsumers, kSlice, kBehind>
                                         : gemm_kernel<T, kTransposed, kConsumers, kSlice, Form::whole>);
}

// ---- plans

// Clock cycles until a tile's sums are stored, where nothing hides it.
double store_cycles(const GemmPlan& plan, int width) { return 4.5 * plan.consumers * width + 1300; }

// Clock cycles, measured: the time of the tensor cores for the steps of a tile, or of TMA if the tile is narrow, and
// its start and end. With a slice a step takes longer than either, by its traffic in shared memory.
double tile_cycles(const ExtendedGemm& g, const GemmPlan& plan, int width) {
  const int consumers = plan.consumers, loaded = g.w.transposed ? width : chunked(width);
  const bool whole_chunks = loaded == width;
  if (!plan.slice) {
    const int64_t rank = g.group_count ? g.groups[0].f.rows : 0;
    const double copies = 130.0 * consumers + 2.0 * loaded + (whole_chunks ? 0 : 80);
    return (double(g.x.cols) + double(rank)) / kDepth * std::max(2.0 * consumers * width, copies) + 600 +
           (stores_behind(g, plan) ? 0 : store_cycles(plan, width));
  }
  const int cols = width + plan.slice, slice_loaded = g.w.transposed ? plan.slice : 64;
  const double memory = consumers * (128.0 + cols) + loaded + slice_loaded;
  const double step = 1.1 * std::max(2.0 * consumers * cols, memory) + (whole_chunks ? 30 : 420);
  const double steps = double(g.x.cols) / kDepth / plan.parts + 1;
  return steps * step + (plan.parts == 1 ? 8.5 * consumers * width : 1900 + 20.0 * width + 900 * plan.parts);
}

// The launch that makes low, unless it runs on SMs that the product leaves to it.
double projection_cycles(const Gpu& gpu, const ExtendedGemm& g, int64_t clusters) {
  const int64_t idle = gpu.multiprocessors() - kCluster * clusters;
  if (g.x.rows <= 20 * idle) return 0;
  const double rows = double(g.x.rows), rank = double(g.groups[0].f.rows * g.group_count);
  return (3700 + 1.67 * rows + 1.67e-3 * rows * double(g.x.cols)) * (1 + 0.35 * std::ceil(rank / 32 - 1));
}

// The work of the busiest cluster: the first, or the first that has a tile less.
double plan_cycles(const Gpu& gpu, const ExtendedGemm& g, const GemmPlan& plan) {
  const int64_t pairs = pairs_of(g.y.rows, plan), clusters = most_clusters(gpu, plan);
  const int64_t wide = pairs * plan.wide_tiles, all = wide + pairs * narrow_tiles(g.w.cols, plan);
  const double wide_cycles = tile_cycles(g, plan, plan.wide), narrow_cycles = tile_cycles(g, plan, plan.narrow);
  double most = 0;
  for (const int64_t c : {int64_t{0}, wide % clusters, all % clusters}) {
    const int64_t wides = wide / clusters + (c < wide % clusters);
    const int64_t narrows = all / clusters + (c < all % clusters) - wides;
    most = std::max(most, double(wides) * wide_cycles + double(narrows) * narrow_cycles);
  }
  if (stores_behind(g, plan) && !g.gated) most += store_cycles(plan, plan.wide);  // of the last tile
  if (g.group_count == 0) return most;
  return plan.slice ? 1.2 * most + 1700 : most + 4800 + projection_cycles(gpu, g, std::min(all, clusters));
}

bool has_width(const GemmPlan& plan, int width) {
  const auto among = [&](auto... widths) { return ((width == widths) || ...); };
  if (plan.consumers == 3) return !plan.slice && among(128, 192);
  return among(64, 96, 128, 160, 192) || (!plan.slice && among(224, 256));
}

// Whether each group has its p, and each tile's columns are of one group, whose low it makes; and whether s can be
// stored.
bool slices_fit(const ExtendedGemm& g, const GemmPlan& plan) {
  const int64_t wide = int64_t(plan.wide) * plan.wide_tiles;
  for (int i = 0; i < g.group_count; ++i) {
    const auto& [f, column, low_at, p] = g.groups[i];
    const bool at_tile = column < wide ? column % plan.wide == 0 : (column - wide) % plan.narrow == 0;
    if (!p.data || p.cols > plan.slice || !at_tile) return false;
  }
  constexpr int64_t k16Bytes = 8;  // in elements
  const bool in_packs = g.s.ld % k16Bytes == 0 && g.s.cols % k16Bytes == 0 && aligned(g.s.data);
  return g.group_count > 0 && (!g.s.data || (!g.s.transposed && g.s.dtype == g.y.dtype && in_packs));
}

bool plan_fits(const ExtendedGemm& g, const GemmPlan& plan) {
  if (g.gated && (plan.consumers == 3 || plan.narrow < 128)) return false;  // GatedWidths
  if (!has_width(plan, plan.wide) || !has_width(plan, plan.narrow) || plan.narrow > plan.wide) return false;
  if (!plan.slice) return plan.parts == 1;
  if (plan.parts > 1) {
    const int step = 16 * plan.parts, widest = plan.wide_tiles ? plan.wide : plan.narrow;
    const int exchanged = kPartColBytes * (widest + (plan.parts - 1) * plan.slice), bytes = stage_bytes(g, plan);
    if (plan.wide % step || plan.narrow % step || exchanged > stages_bytes(plan) / bytes * bytes) return false;
  }
  return slices_fit(g, plan);
}

// All ways to cut the columns with as many consumers, such a slice and such parts.
template <class Consider>
void cut_columns(const Gpu& gpu, const ExtendedGemm& g, GemmPlan plan, const Consider& consider) {
  constexpr int kStep = 32, kWidest = 256;
  const int64_t pairs = pairs_of(g.y.rows, plan), clusters = most_clusters(gpu, plan);
  for (plan.wide = 2 * kStep; plan.wide <= kWidest; plan.wide += kStep) {
    const int64_t tiles = ceil_div(g.w.cols, plan.wide);
    plan.wide_tiles = int(tiles);
    plan.narrow = plan.wide;
    consider(plan);
    const int64_t whole = (pairs * tiles - 1) / clusters;  // rounds before the last one
    for (int64_t rounds = std::max<int64_t>(whole - 1, 1); rounds <= whole; ++rounds)
      for (plan.narrow = 2 * kStep; plan.narrow < plan.wide; plan.narrow += kStep) {
        plan.wide_tiles = int(rounds * clusters / pairs);
        consider(plan);
      }
  }
}

// The cut that WICK_CUDA_WAY=sm90:... names: all of it, or its slice alone.
struct Forced {
  GemmPlan plan;
  int count = 0;  // of numbers that are given

  Forced() {
    const std::string given = forced_way("sm90");
    count = std::sscanf(given.c_str(), "%d/%d/%d/%d/%d/%d", &plan.slice, &plan.parts, &plan.consumers, &plan.wide,
                        &plan.wide_tiles, &plan.narrow);
  }
  bool whole() const { return count == 6; }
  bool allows(const GemmPlan& other) const { return count != 1 || other.slice == plan.slice; }
};

}  // namespace

bool gemm_sm90_fits(const Gpu& gpu, const ExtendedGemm& g) {
  if (gpu.capability() != 90 || g.y.cols % 8 || g.y.transposed || g.x.transposed || g.low.transposed) return false;
  if (g.gated && (!g.w.transposed || g.x.cols <= (kBehindSteps - 1) * kDepth)) return false;
  const auto fits = [&](const DeviceMatrix& m) { return !m.data || (m.dtype == g.y.dtype && tensor_map_fits(m)); };
  for (const DeviceMatrix& m : {g.y, g.x, g.w, g.low})
    if (!fits(m)) return false;
  for (int i = 0; i < g.group_count; ++i)
    for (const DeviceMatrix& m : {g.groups[i].f, g.groups[i].p})
      if (!fits(m) || (m.data && m.transposed != g.w.transposed)) return false;
  return true;
}

GemmPlan plan_gemm_sm90(const Gpu& gpu, const ExtendedGemm& g) {
  Forced forced;
  if (forced.whole()) {
    forced.plan.wide_tiles = int(std::min<int64_t>(forced.plan.wide_tiles, ceil_div(g.w.cols, forced.plan.wide)));
    if (plan_fits(g, forced.plan)) return forced.plan;
  }
  GemmPlan best;
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](const GemmPlan& plan) {
    if (!forced.allows(plan) || !plan_fits(g, plan)) return;
    const double cycles = plan_cycles(gpu, g, plan);
    if (cycles < least) best = plan;
    least = std::min(least, cycles);
  };
  for (const int consumers : {2, 3}) cut_columns(gpu, g, {.consumers = consumers}, consider);
  const int64_t rank = g.group_count ? g.groups[0].f.rows : 0;
  if (rank == 0 || rank > kMostSlice) return best;
  int slice = 0;
  with_rank_tile(rank, [&](auto tile) { slice = tile; });
  for (int parts = 1; parts <= kMostParts; parts *= 2) cut_columns(gpu, g, {.slice = slice, .parts = parts}, consider);
  return best;
}

void gemm_sm90(CudaBackend& cuda, const ExtendedGemm& g, const GemmPlan& plan) {
  const auto launch_as = [&]<class T, int kConsumers, int kSlice>(Type<T>, std::integral_constant<int, kConsumers>,
                                                                  std::integral_constant<int, kSlice>) {
    if (g.w.transposed)
      launch_gemm<T, false, kConsumers, kSlice>(cuda, g, plan);
    else
      launch_gemm<T, true, kConsumers, kSlice>(cuda, g, plan);
  };
  const auto with_type = [&](auto type) {
    using T = typename decltype(type)::type;
    if (g.gated) return launch_kernel(cuda, g, plan, gemm_kernel<T, false, 2, 0, Form::gated>);
    constexpr std::integral_constant<int, 2> two;
    if (plan.slice) return with_rank_tile(plan.slice, [&](auto slice) { launch_as(type, two, slice); });
    if (plan.consumers == 2) return launch_as(type, two, std::integral_constant<int, 0>());
    launch_as(type, std::integral_constant<int, 3>(), std::integral_constant<int, 0>());
  };
  dispatch_16bit(g.y.dtype, with_type);
}

}  // namespace wick
