// A persistent kernel after Hopper's ways: one warp of a block asks the copy engine for tiles, two warpgroups multiply
// them (wgmma, 64 rows each) and store through shared memory. Two blocks of a cluster work on neighbouring rows and
// share each tile of w. The last steps of the reduction take their tiles from `low` and `f` instead of x and w, and
// multiply as many of the tile's columns as the rank needs.
#include "wick/backend/cuda/lora_gemm.h"

#include <algorithm>

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/wgmma.cuh"

namespace wick {

namespace {

constexpr int kRows = 128, kDepth = 64;  // of a block's tile, and of a step of the reduction
constexpr int kCluster = 2;
constexpr int kThreads = 384;
constexpr int kPanels = 8;  // clusters' tiles along the rows that are worked on together, so that w stays in the L2

struct GemmMaps {
  CUtensorMap x, w, low, f, y;
};
struct GemmShape {
  int64_t rows, cols;
  int steps, tail_steps;  // of the reduction; those over the rank
  int tail_k16;           // multiples of 16 that the rank needs
  int row_pairs, col_tiles;
  const float* bias;
};

// A block's shared memory. Tiles of the copy engine lie at multiples of 1024 bytes.
template <class T, int kCols>
struct GemmShared {
  static constexpr int kStages = kCols == 64 ? 6 : 4;
  static constexpr int kXTile = kRows * kDepth, kWTile = kCols * kDepth, kOutTile = 64 * 64;
  T x[kStages][kXTile];
  T w[kStages][kWTile];
  T out[2][2][kOutTile];  // two for each consumer
  uint64_t full[kStages], empty[kStages];
};

#ifdef WICK_SM90A

struct Tile {
  int row, col;  // of its first element
};
// Panels of kPanels cluster tiles, column after column.
__device__ __forceinline__ Tile tile_at(int index, const GemmShape& shape, int cols, int rank) {
  const int per_panel = kPanels * shape.col_tiles;
  const int panel = index / per_panel, within = index % per_panel;
  const int height = min(kPanels, shape.row_pairs - panel * kPanels);
  return {((panel * kPanels + within % height) * kCluster + rank) * kRows, within / height * cols};
}

struct Ring {  // the stage that comes next, and how often the ring went round
  int stage = 0;
  uint32_t phase = 0;
  template <int kStages>
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// Half of a tile of w, or of f, to both blocks.
template <class T, int kCols, bool kTransposed>
__device__ __forceinline__ void load_shared_tile(T* tile, const CUtensorMap& map, uint64_t* full, int step, int col,
                                                 int rank) {
  constexpr uint16_t kBoth = 3;
  if constexpr (kTransposed) {  // chunks of 64 columns in turn
#pragma unroll
    for (int chunk = 0; chunk < kCols / 64; ++chunk)
      if (chunk % kCluster == rank)
        tma_load(tile + chunk * 64 * kDepth, map, full, col + chunk * 64, step * kDepth, kBoth);
  } else {
    constexpr int kHalf = kCols / kCluster;
    tma_load(tile + rank * kHalf * kDepth, map, full, step * kDepth, col + rank * kHalf, kBoth);
  }
}

template <class T, int kCols, bool kTransposed>
__device__ __forceinline__ void produce(GemmShared<T, kCols>& shared, const GemmMaps& maps, const GemmShape& shape,
                                        int rank, int first, int stride) {
  using Shared = GemmShared<T, kCols>;
  constexpr int kBytes = (Shared::kXTile + Shared::kWTile) * int(sizeof(T));
  bool waited = false;
  Ring ring;
  for (int index = first; index < shape.row_pairs * shape.col_tiles; index += stride) {
    const Tile tile = tile_at(index, shape, kCols, rank);
    for (int step = 0; step < shape.steps + shape.tail_steps; ++step) {
      barrier_wait(&shared.empty[ring.stage], ring.phase ^ 1);
      uint64_t* full = &shared.full[ring.stage];
      barrier_expect(full, kBytes);
      const bool tail = step >= shape.steps;
      const int at = tail ? step - shape.steps : step;
      if (tail && !waited) {
        wait_for_previous();
        launch_dependents();  // what starts now may read what the launch before this one wrote
        waited = true;
      }
      tma_load(shared.x[ring.stage], tail ? maps.low : maps.x, full, at * kDepth, tile.row);
      load_shared_tile<T, kCols, kTransposed>(shared.w[ring.stage], tail ? maps.f : maps.w, full, at, tile.col, rank);
      ring.advance<Shared::kStages>();
    }
  }
}

template <class T>
__device__ __forceinline__ uint32_t pack(float a, float b) {
  Pack<T, 2> both{{from_float<T>(a), from_float<T>(b)}};
  return *reinterpret_cast<uint32_t*>(&both);
}

// A consumer's 64 rows, by way of two tiles of 64 columns that are written and stored in turn.
template <class T, int kCols>
__device__ __forceinline__ void store_tile(float (&sum)[kCols / 2], T (&out)[2][64 * 64], const CUtensorMap& map,
                                           const GemmShape& shape, Tile tile, int consumer) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
  const int barrier = 1 + consumer;
#pragma unroll
  for (int part = 0; part < (kCols + 63) / 64; ++part) {
    T* buffer = out[part % 2];
    if (thread == 0) tma_store_wait_read<1>();
    named_barrier(barrier, 128);
    const int row = warp * 16 + lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      if (part * 64 + j * 8 >= kCols) break;
      float* d = &sum[(part * 8 + j) * 4];
      if (shape.bias) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int col = tile.col + part * 64 + (j + n) * 8 + lane % 4 * 2 + c;
            const float b = col < shape.cols ? shape.bias[col] : 0;
            d[n * 4 + c] += b;
            d[n * 4 + 2 + c] += b;
          }
      }
      store_matrices(buffer + row * 64 + ((j + lane / 16) ^ (row % 8)) * 8, pack<T>(d[0], d[1]), pack<T>(d[2], d[3]),
                     pack<T>(d[4], d[5]), pack<T>(d[6], d[7]));
    }
    fence_async();
    named_barrier(barrier, 128);
    if (thread == 0) tma_store(map, buffer, tile.col + part * 64, tile.row + consumer * 64);
  }
}

template <class T, int kCols, bool kTransposed>
__device__ __forceinline__ void consume(GemmShared<T, kCols>& shared, const GemmMaps& maps, const GemmShape& shape,
                                        int rank, int consumer, int first, int stride) {
  using Shared = GemmShared<T, kCols>;
  const bool elected = threadIdx.x % 128 < kCluster;
  const auto release = [&](int stage) {
    if (elected) barrier_arrive(&shared.empty[stage], threadIdx.x % 128);
  };
  Ring ring;
  for (int index = first; index < shape.row_pairs * shape.col_tiles; index += stride) {
    float sum[kCols / 2] = {};
    int before = 0;
    for (int step = 0; step < shape.steps; ++step) {
      barrier_wait(&shared.full[ring.stage], ring.phase);
      const uint64_t a = wgmma_operand(shared.x[ring.stage] + consumer * 64 * kDepth, true);
      const uint64_t b = wgmma_operand(shared.w[ring.stage], !kTransposed);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k)
        wgmma<T, kTransposed, kCols>(sum, a + uint64_t(k) * wgmma_step(true),
                                     b + uint64_t(k) * wgmma_step(!kTransposed));
      wgmma_commit();
      wgmma_wait<1>();  // the step before is done with its tiles
      if (step > 0) release(before);
      before = ring.stage;
      ring.advance<Shared::kStages>();
    }
    wgmma_wait<0>();
    release(before);
    for (int k16 = 0; k16 < shape.tail_k16; ++k16) {
      const int k = k16 % (kDepth / 16);
      if (k == 0) barrier_wait(&shared.full[ring.stage], ring.phase);
      const uint64_t a = wgmma_operand(shared.x[ring.stage] + consumer * 64 * kDepth, true);
      const uint64_t b = wgmma_operand(shared.w[ring.stage], !kTransposed);
      wgmma_fence();
      wgmma<T, kTransposed, kCols>(sum, a + uint64_t(k) * wgmma_step(true), b + uint64_t(k) * wgmma_step(!kTransposed));
      wgmma_commit();
      wgmma_wait<0>();
      if (k + 1 == kDepth / 16 || k16 + 1 == shape.tail_k16) {
        release(ring.stage);
        ring.advance<Shared::kStages>();
      }
    }
    store_tile<T, kCols>(sum, shared.out[consumer], maps.y, shape, tile_at(index, shape, kCols, rank), consumer);
  }
  if (threadIdx.x % 128 == 0) tma_store_wait_read<0>();
}

#endif  // WICK_SM90A

template <class T, int kCols, bool kTransposed>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_kernel(const __grid_constant__ GemmMaps maps, const __grid_constant__ GemmShape shape) {
#ifdef WICK_SM90A
  using Shared = GemmShared<T, kCols>;
  extern __shared__ char memory[];
  Shared& shared = *reinterpret_cast<Shared*>((reinterpret_cast<uintptr_t>(memory) + 1023) & ~uintptr_t{1023});
  const int rank = int(blockIdx.x) % kCluster, first = int(blockIdx.x) / kCluster, stride = int(gridDim.x) / kCluster;
  if (shape.tail_steps == 0) launch_dependents();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::kStages; ++i) {
      barrier_init(&shared.full[i], 1);
      barrier_init(&shared.empty[i], 2 * kCluster);  // both consumers of both blocks
    }
    barrier_init_done();
  }
  cluster_sync();
  if (threadIdx.x < 128) {
    registers_shrink<40>();
    if (threadIdx.x == 0) produce<T, kCols, kTransposed>(shared, maps, shape, rank, first, stride);
  } else {
    registers_grow<232>();
    consume<T, kCols, kTransposed>(shared, maps, shape, rank, int(threadIdx.x) / 128 - 1, first, stride);
  }
  cluster_leave();  // the other block may still arrive at our barriers
#endif
}

// ---- launches

// The driver's encoder of tensor maps; the library that holds it is not linked.
decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
               "finding cuTensorMapEncodeTiled");
#else
    cuda_check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found),
               "finding cuTensorMapEncodeTiled");
#endif
    check(function != nullptr, "CUDA: the driver has no cuTensorMapEncodeTiled; a newer driver helps");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encoder;
}

// Boxes of rows x cols of a matrix as it lies in memory; zeros are read beyond its ends.
CUtensorMap tensor_map(const DeviceMatrix& m, int rows, int cols) {
  const int64_t m_rows = m.transposed ? m.cols : m.rows, m_cols = m.transposed ? m.rows : m.cols;
  const cuuint64_t extent[2] = {cuuint64_t(m_cols), cuuint64_t(m_rows)}, pitch[1] = {cuuint64_t(m.ld) * 2};
  const cuuint32_t box[2] = {cuuint32_t(cols), cuuint32_t(rows)}, step[2] = {1, 1};
  CUtensorMap map;
  const CUresult status = tensor_map_encoder()(
      &map, m.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, m.data,
      extent, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(status == CUDA_SUCCESS, "CUDA: no tensor map for {} x {} of {} with rows of {} (error {})", m_rows, m_cols,
        name_of(m.dtype), m.ld, int(status));
  return map;
}

template <class T, int kCols, bool kTransposed>
void launch_gemm(CudaBackend& cuda, const ExtendedGemm& g, bool follows) {
  const auto shared_tile = [](const DeviceMatrix& m) {
    return kTransposed ? tensor_map(m, kDepth, 64) : tensor_map(m, kCols / kCluster, kDepth);
  };
  const int64_t rank = g.low.data ? g.low.cols : 0;
  const GemmMaps maps{tensor_map(g.x, kRows, kDepth), shared_tile(g.w), tensor_map(rank ? g.low : g.x, kRows, kDepth),
                      shared_tile(rank ? g.f : g.w), tensor_map(g.y, 64, 64)};
  GemmShape shape{};
  shape.rows = g.y.rows;
  shape.cols = g.y.cols;
  shape.steps = int((g.x.cols + kDepth - 1) / kDepth);
  shape.tail_steps = int((rank + kDepth - 1) / kDepth);
  shape.tail_k16 = int((rank + 15) / 16);
  shape.row_pairs = int((g.y.rows + kCluster * kRows - 1) / (kCluster * kRows));
  shape.col_tiles = int((g.y.cols + kCols - 1) / kCols);
  shape.bias = g.bias;
  const int tiles = shape.row_pairs * shape.col_tiles, most = std::min(cuda.multiprocessors() / kCluster, tiles);
  const int waves = (tiles + most - 1) / most, clusters = (tiles + waves - 1) / waves;
  launch("LoRA product", cuda.stream(),
         {dim3(unsigned(clusters * kCluster)), dim3(kThreads), sizeof(GemmShared<T, kCols>) + 1024, kCluster, follows},
         gemm_kernel<T, kCols, kTransposed>, maps, shape);
}

bool readable(const DeviceMatrix& m) { return m.ld % 8 == 0 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0; }

}  // namespace

bool extended_gemm_fits(const CudaBackend& cuda, const ExtendedGemm& g) {
  if (cuda.capability() != 90 || g.y.dtype == DType::f32) return false;
  for (const DeviceMatrix* m : {&g.y, &g.x, &g.w, &g.low, &g.f})
    if (m->data && (m->dtype != g.y.dtype || !readable(*m))) return false;
  constexpr int64_t kMost = int64_t{1} << 31;
  return !g.y.transposed && !g.x.transposed && !g.low.transposed && (!g.low.data || g.f.transposed == g.w.transposed) &&
         g.y.rows < kMost && g.y.cols < kMost && g.x.cols < kMost;
}

void extended_gemm(CudaBackend& cuda, const ExtendedGemm& g, bool follows) {
  // The width of tiles with which the busiest cluster has the least to do; a tile's end costs about as much as some
  // columns of its own.
  constexpr int kEnd = 32;
  const int64_t pairs = (g.y.rows + kCluster * kRows - 1) / (kCluster * kRows);
  const auto cost = [&](int cols) {
    const int64_t tiles = pairs * ((g.y.cols + cols - 1) / cols), clusters = cuda.multiprocessors() / kCluster;
    return (tiles + clusters - 1) / clusters * (cols + kEnd);
  };
  const auto launch_as = [&]<class T, int kCols>(Type<T>, std::integral_constant<int, kCols>) {
    if (g.w.transposed)
      launch_gemm<T, kCols, false>(cuda, g, follows);
    else
      launch_gemm<T, kCols, true>(cuda, g, follows);
  };
  const auto with_width = [&](auto type) {
    if (cost(64) < cost(192) && cost(64) < cost(256))
      launch_as(type, std::integral_constant<int, 64>());
    else if (cost(192) < cost(256))
      launch_as(type, std::integral_constant<int, 192>());
    else
      launch_as(type, std::integral_constant<int, 256>());
  };
  if (g.y.dtype == DType::bf16)
    with_width(Type<bf16>());
  else
    with_width(Type<f16>());
}

}  // namespace wick
