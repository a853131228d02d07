#include "wick/backend/cuda/linear/lora_products.h"

#include <algorithm>

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/device/ring.cuh"
#include "wick/backend/cuda/device/tile_copy.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kDepth = 64;  // of the reduction, a step of the pipeline
constexpr int kPad = 8;     // elements behind each row of a tile, so that eight rows lie in different banks
constexpr int kMaxCluster = 8;

// The steps of a reduction that block `rank` of a cluster of `count` takes.
struct Steps {
  int begin, end;
};
[[maybe_unused]] __device__ __forceinline__ Steps steps_of(int64_t extent, int depth, int rank, int count) {
  const int steps = int(ceil_div(extent, depth));
  return {steps * rank / count, steps * (rank + 1) / count};
}

// Where a block's tile of a result begins, and the part of the reduction that it sums.
struct Tile {
  int64_t first;  // row of out
  int first_rank;
  Steps steps;
};

// sum += a b over kSteps steps of 16; read(i, a, b) gets the operands of step i, one step ahead of the product.
template <class T, int kSteps, int kM, int kEights, class Read>
__device__ __forceinline__ void multiply_steps(float (&sum)[kM][kEights][4], const Read& read) {
  uint32_t a[2][kM][4], b[2][kEights / 2][4];
  read(0, a[0], b[0]);
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (i + 1 < kSteps) read(i + 1, a[(i + 1) % 2], b[(i + 1) % 2]);
#pragma unroll
    for (int n = 0; n < kEights / 2; ++n)
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma<T>(sum[m][2 * n], a[i % 2][m], b[i % 2][n][0], b[i % 2][n][1]);
        mma<T>(sum[m][2 * n + 1], a[i % 2][m], b[i % 2][n][2], b[i % 2][n][3]);
      }
  }
}

// Sums the partial [kRows, kRank] results of a block's warps and a cluster's blocks, in that order. Each block of the
// cluster gets some of the rows, and calls store(row, column, sums) for four columns at a time.
template <int kRows, int kRank>
struct Partial {
  static constexpr int kLd = kRank + kPad;
  static constexpr int kFloats = kRows * kLd;

  // A warp's accumulators for rows [row, row + 16).
  static __device__ __forceinline__ void put(float* partial, const float (&sum)[kRank / 8][4], int row, int lane) {
#pragma unroll
    for (int n = 0; n < kRank / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(partial + (row + lane / 4 + 8 * half) * kLd + n * 8 + lane % 4 * 2) =
            make_float2(sum[n][2 * half], sum[n][2 * half + 1]);
  }

  // Neighbouring threads get neighbouring rows, or else columns. The cluster's size is a power of two.
  template <int kCopies, class Store>
  static __device__ __forceinline__ void reduce(float* partials, int rank, int cluster, bool rows_fastest,
                                                const Store& store) {
    constexpr int kGroups = kRank / 4;
    const int share = kRows / cluster, shift = 31 - __clz(share);
    if (cluster > 1)
      cluster_sync();
    else
      __syncthreads();
    for (int i = threadIdx.x; i < share * kGroups; i += kThreads) {
      const int row = rank * share + (rows_fastest ? i & (share - 1) : i / kGroups);
      const int col = (rows_fastest ? i >> shift : i % kGroups) * 4;
      const float* at = partials + row * kLd + col;
      float4 part[kMaxCluster][kCopies];
#pragma unroll
      for (int peer = 0; peer < kMaxCluster; ++peer)
#pragma unroll
        for (int copy = 0; copy < kCopies; ++copy) {
          part[peer][copy] = {};
          const float* there = at + copy * kFloats;
          if (peer < cluster)
            part[peer][copy] = *reinterpret_cast<const float4*>(cluster > 1 ? cluster_map(there, peer) : there);
        }
      float4 total{};
#pragma unroll
      for (int peer = 0; peer < kMaxCluster; ++peer)
#pragma unroll
        for (int copy = 0; copy < kCopies; ++copy) add(total, part[peer][copy]);
      const float sums[4] = {total.x, total.y, total.z, total.w};
      store(row, col, sums);
    }
    if (cluster > 1) cluster_leave();  // no block leaves while its shared memory is read
  }
};

// ---- x f

struct Projections {
  Projection of[kMostLayers];
  int rank_tiles;
};

// f lies in shared memory as in global memory: [kRank, kDepth] for down, [kDepth, kRank] for up. In f32 it comes
// through tiles of its own, from which each thread converts the elements that it copied.
template <class T_, class F_, int kRank_, int kRowWarps_, int kFragments_>
struct ProjectKernel {
  using T = T_;
  using F = F_;
  static constexpr int kRank = kRank_, kRowWarps = kRowWarps_, kFragments = kFragments_;
  static constexpr bool kConvert = !std::is_same_v<T, F>;
  static constexpr int kRows = 16 * kFragments * kRowWarps, kCopies = kWarps / kRowWarps;
  static constexpr bool kLarge = kRows == 128;  // then two blocks share an SM
  static constexpr int kDepth = kLarge && kConvert ? 32 : 64,
                       kStages = !kLarge    ? (kConvert && kRank == kWidestRankTile ? 4 : 6)
                                 : kConvert ? 5
                                            : 4;
  static constexpr int kXLd = kDepth + kPad, kXTile = kRows * kXLd;
  static constexpr int kFactorTile = std::max(kDepth * (kRank + kPad), kRank*(kDepth + kPad));
  static constexpr int kRawTile = kConvert ? kDepth * kRank : 0;
  using Sums = Partial<kRows, kRank>;
  static constexpr size_t kPipeline =
      (kStages * kXTile + (kConvert ? 2 : kStages) * kFactorTile) * sizeof(T) + size_t(kStages) * kRawTile * sizeof(F);
  static constexpr size_t kReduction = size_t(kCopies) * Sums::kFloats * sizeof(float);
  static constexpr size_t kSharedBytes = std::max(kPipeline, kReduction);
};

// Brings the steps of a reduction to shared memory, in their order.
template <class Kernel, bool kUp>
class ProjectLoader {
  using T = typename Kernel::T;
  using F = typename Kernel::F;
  static constexpr int kStages = Kernel::kStages, kDepth = Kernel::kDepth;
  static constexpr bool kConvert = Kernel::kConvert;
  static constexpr int kFactorRows = kUp ? kDepth : Kernel::kRank, kFactorCols = kUp ? Kernel::kRank : kDepth;
  static constexpr int kRawTile = kConvert ? Kernel::kRawTile : Kernel::kFactorTile;

 public:
  static constexpr int kFactorLd = kFactorCols + kPad;

  __device__ __forceinline__ ProjectLoader(const Projection& p, const Tile& tile, char* shared)
      : x_tiles_(reinterpret_cast<T*>(shared)),
        factors_(x_tiles_ + kStages * Kernel::kXTile),
        raw_(reinterpret_cast<F*>(factors_ + (kConvert ? 2 : 0) * Kernel::kFactorTile)),
        left_(tile.steps.end - tile.steps.begin) {
    const int64_t depth = int64_t(tile.steps.begin) * kDepth;
    x_copy_ = XCopy(p.x.data, p.x.ld, tile.first, depth, p.x.rows, p.x.cols);
    f_copy_ = FactorCopy(p.f.data, p.f.ld, kUp ? depth : tile.first_rank, kUp ? tile.first_rank : depth,
                         kUp ? p.f.rows : p.f.cols, kUp ? p.f.cols : p.f.rows);
  }
  // A step, or, behind the last one, nothing, as a group of copies.
  __device__ __forceinline__ void load() {
    if (left_ > 0) {
      x_copy_.start(x_tiles_ + at_.stage * Kernel::kXTile);
      f_copy_.start(raw_ + at_.stage * kRawTile);
    }
    x_copy_.next_cols();
    kUp ? f_copy_.next_rows() : f_copy_.next_cols();
    copy_async_commit();
    --left_;
    at_.advance();
  }
  __device__ __forceinline__ void convert(int step, int stage) {
    if constexpr (kConvert)
      f_copy_.template convert<PaddedRows<kFactorLd>>(factors_ + step % 2 * Kernel::kFactorTile,
                                                      raw_ + stage * kRawTile);
  }
  __device__ __forceinline__ const T* x(int stage) const { return x_tiles_ + stage * Kernel::kXTile; }
  __device__ __forceinline__ const T* factor(int step, int stage) const {
    return factors_ + (kConvert ? step % 2 : stage) * Kernel::kFactorTile;
  }

 private:
  using XCopy = TileCopy<T, kThreads, Kernel::kRows, kDepth, PaddedRows<Kernel::kXLd>>;
  using FactorCopy = TileCopy<F, kThreads, kFactorRows, kFactorCols, PaddedRows<kConvert ? kFactorCols : kFactorLd>>;
  T *x_tiles_, *factors_;
  F* raw_;  // factors as they come
  int left_;
  XCopy x_copy_;
  FactorCopy f_copy_;
  RingPlace<kStages> at_;
};

// sum += x f over some steps of the reduction, for a warp's rows.
template <class Kernel, bool kUp>
__device__ __forceinline__ void project_steps(float (&sum)[Kernel::kFragments][Kernel::kRank / 8][4],
                                              const Projection& p, const Tile& tile, char* shared) {
  using T = typename Kernel::T;
  using Loader = ProjectLoader<Kernel, kUp>;
  constexpr int kStages = Kernel::kStages, kXLd = Kernel::kXLd, kFactorLd = Loader::kFactorLd;
  constexpr int kInner = Kernel::kDepth / 16 / Kernel::kCopies, kApart = 16 * Kernel::kCopies;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row_warp = warp % Kernel::kRowWarps, depth_warp = warp / Kernel::kRowWarps;
  const int count = tile.steps.end - tile.steps.begin;
  Loader loader(p, tile, shared);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) loader.load();
  if (Kernel::kConvert) {
    copy_async_wait<kStages - 2>();
    loader.convert(0, 0);
  }
  RingPlace<kStages> at;
  for (int step = 0; step < count; ++step) {
    copy_async_wait<kStages - (Kernel::kConvert ? 3 : 2)>();
    __syncthreads();
    loader.load();
    const int stage = at.stage;
    at.advance();
    if (step + 1 < count) loader.convert(step + 1, at.stage);
    const T* x = loader.x(stage) + row_warp * 16 * Kernel::kFragments * kXLd + depth_warp * 16;
    const T* f = loader.factor(step, stage) + depth_warp * 16 * (kUp ? kFactorLd : 1);
    multiply_steps<T, kInner>(sum, [&](int i, auto& a, auto& b) {
#pragma unroll
      for (int m = 0; m < Kernel::kFragments; ++m) load_a(a[m], x + i * kApart + 16 * m * kXLd, kXLd, lane);
#pragma unroll
      for (int n = 0; n < Kernel::kRank / 16; ++n) {
        if (kUp)
          load_b(b[n], f + i * kApart * kFactorLd + n * 16, kFactorLd, lane);
        else
          load_b_transposed(b[n], f + n * 16 * kFactorLd + i * kApart, kFactorLd, lane);
      }
    });
  }
  copy_async_wait<0>();
  __syncthreads();
}

// Blocks along x share the reduction, along y the rows; z is the rank's tile of one of the products.
template <class T, class F, int kRank, int kRowWarps, int kFragments>
__global__ void __launch_bounds__(kThreads, 2) project_kernel(const Projections all, int cluster) {
#if __CUDA_ARCH__ >= 800
  using Kernel = ProjectKernel<T, F, kRank, kRowWarps, kFragments>;
  extern __shared__ __align__(128) char shared[];
  // In this order, since what follows takes all but this kernel's results for finished.
  wait_for_previous();
  launch_dependents();

  const Projection p = all.of[blockIdx.z / all.rank_tiles];
  const Tile tile{int64_t(blockIdx.y) * Kernel::kRows, int(blockIdx.z) % all.rank_tiles * kRank,
                  steps_of(p.x.cols, Kernel::kDepth, int(blockIdx.x), cluster)};
  float sum[kFragments][kRank / 8][4] = {};
  if (p.f.transposed)
    project_steps<Kernel, false>(sum, p, tile, shared);
  else
    project_steps<Kernel, true>(sum, p, tile, shared);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const partials = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int m = 0; m < kFragments; ++m)
    Kernel::Sums::put(partials + warp / kRowWarps * Kernel::Sums::kFloats, sum[m],
                      (warp % kRowWarps * kFragments + m) * 16, lane);
  const auto store = [&](int row, int col, const float(&total)[4]) {
    if (tile.first + row >= p.x.rows) return;
    const auto write = [&](const DeviceMatrix& to, float scale) {
      T* const out = static_cast<T*>(to.data) + (tile.first + row) * to.ld + tile.first_rank + col;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (tile.first_rank + col + j < int(to.cols)) out[j] = from_float<T>(scale * total[j]);
    };
    if (p.out.data) write(p.out, p.scale);
    if (p.scaled.data) write(p.scaled, p.scale * p.scaled_by);
  };
  Kernel::Sums::template reduce<Kernel::kCopies>(partials, int(blockIdx.x), cluster, false, store);
#endif
}

// ---- x^T s

struct Gradients {
  FactorGradient of[2 * kMostLayers];
};

template <int kRank_, int kColWarps_, int kFragments_>
struct GradientKernel {
  static constexpr int kRank = kRank_, kColWarps = kColWarps_, kFragments = kFragments_;
  static constexpr int kCols = 16 * kFragments * kColWarps, kCopies = kWarps / kColWarps;
  static constexpr int kStages = 4;
  static constexpr int kXLd = kCols + kPad, kXTile = kDepth * kXLd;
  static constexpr int kSLd = kRank + kPad, kSTile = kDepth * kSLd;
  using Sums = Partial<kCols, kRank>;
  static constexpr size_t kPipeline = size_t(kStages) * (kXTile + kSTile) * sizeof(uint16_t);
  static constexpr size_t kReduction = size_t(kCopies) * Sums::kFloats * sizeof(float);
  static constexpr size_t kSharedBytes = std::max(kPipeline, kReduction);

  static __host__ __device__ constexpr int64_t tiles(const FactorGradient& g) { return ceil_div(g.x.cols, kCols); }
};

// sum += x^T s over the tile's steps, for a warp's columns.
template <class Kernel, class T>
__device__ __forceinline__ void gradient_steps(float (&sum)[Kernel::kFragments][Kernel::kRank / 8][4],
                                               const FactorGradient& p, const Tile& tile, Follows follows,
                                               char* shared) {
  constexpr int kStages = Kernel::kStages, kXLd = Kernel::kXLd, kSLd = Kernel::kSLd;
  constexpr int kInner = kDepth / 16 / Kernel::kCopies, kApart = 16 * Kernel::kCopies;
  T* const x_tiles = reinterpret_cast<T*>(shared);
  T* const s_tiles = x_tiles + kStages * Kernel::kXTile;
  const int count = tile.steps.end - tile.steps.begin;
  const int64_t first_row = int64_t(tile.steps.begin) * kDepth;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int col_warp = warp % Kernel::kColWarps, row_warp = warp / Kernel::kColWarps;
  TileCopy<T, kThreads, kDepth, Kernel::kCols, PaddedRows<kXLd>> x_copy(p.x.data, p.x.ld, first_row, tile.first,
                                                                        p.x.rows, p.x.cols);
  TileCopy<T, kThreads, kDepth, Kernel::kRank, PaddedRows<kSLd>> s_copy(p.s.data, p.s.ld, first_row, tile.first_rank,
                                                                        p.x.rows, p.out.cols);
  int x_loaded = 0, s_loaded = 0;
  const auto load_x = [&] {
    if (x_loaded < count) x_copy.start(x_tiles + x_loaded % kStages * Kernel::kXTile);
    x_copy.next_rows();
    ++x_loaded;
  };
  const auto load_s = [&] {
    if (s_loaded < count) s_copy.start(s_tiles + s_loaded % kStages * Kernel::kSTile);
    s_copy.next_rows();
    copy_async_commit();
    ++s_loaded;
  };
  // x was there before the kernel that computes s.
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) load_x();
  if (follows != Follows::product) wait_for_previous();
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) load_s();
  for (int step = 0; step < count; ++step) {
    copy_async_wait<kStages - 2>();
    __syncthreads();
    load_x();
    load_s();
    const T* x = x_tiles + step % kStages * Kernel::kXTile + row_warp * 16 * kXLd + col_warp * 16 * Kernel::kFragments;
    const T* s = s_tiles + step % kStages * Kernel::kSTile + row_warp * 16 * kSLd;
    multiply_steps<T, kInner>(sum, [&](int i, auto& a, auto& b) {
#pragma unroll
      for (int m = 0; m < Kernel::kFragments; ++m) load_a_transposed(a[m], x + i * kApart * kXLd + 16 * m, kXLd, lane);
#pragma unroll
      for (int n = 0; n < Kernel::kRank / 16; ++n) load_b(b[n], s + i * kApart * kSLd + 16 * n, kSLd, lane);
    });
  }
  copy_async_wait<0>();
  __syncthreads();
}

// Four ranks of a column.
__device__ __forceinline__ void store_gradient(const FactorGradient& p, int64_t col, int first_rank,
                                               const float (&total)[4]) {
  if (col >= p.x.cols) return;
  const int64_t rank_step = p.out.transposed ? p.out.ld : 1;
  const int rank = int(p.out.cols);
  float* out = static_cast<float*>(p.out.data) + col * (p.out.transposed ? 1 : p.out.ld) + first_rank * rank_step;
  if (!p.out.transposed && first_rank + 4 <= rank && p.out.ld % 4 == 0 && aligned(out)) {
    *reinterpret_cast<float4*>(out) =
        make_float4(p.scale * total[0], p.scale * total[1], p.scale * total[2], p.scale * total[3]);
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (first_rank + j < rank) out[j * rank_step] = p.scale * total[j];
}

// Blocks along x share the reduction over the rows, along y the columns of both products; z is the rank's tile.
template <class T, int kRank, int kColWarps, int kFragments>
__global__ void __launch_bounds__(kThreads, 2) gradient_kernel(const Gradients all, int cluster, Follows follows) {
#if __CUDA_ARCH__ >= 800
  using Kernel = GradientKernel<kRank, kColWarps, kFragments>;
  extern __shared__ __align__(128) char shared[];
  launch_dependents();
  int which = 0;
  int64_t col_tile = blockIdx.y;
  while (col_tile >= Kernel::tiles(all.of[which])) col_tile -= Kernel::tiles(all.of[which++]);
  const FactorGradient p = all.of[which];
  const Tile tile{col_tile * Kernel::kCols, int(blockIdx.z) * kRank,
                  steps_of(p.x.rows, kDepth, int(blockIdx.x), cluster)};
  float sum[kFragments][kRank / 8][4] = {};
  gradient_steps<Kernel, T>(sum, p, tile, follows, shared);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const partials = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int m = 0; m < kFragments; ++m)
    Kernel::Sums::put(partials + warp / kColWarps * Kernel::Sums::kFloats, sum[m],
                      (warp % kColWarps * kFragments + m) * 16, lane);
  Kernel::Sums::template reduce<Kernel::kCopies>(
      partials, int(blockIdx.x), cluster, p.out.transposed,
      [&](int col, int r, const float(&total)[4]) { store_gradient(p, tile.first + col, tile.first_rank + r, total); });
  if (follows == Follows::product) wait_for_previous();  // so that a kernel which waits for this one waits for both
#endif
}

// ---- launches

// How many blocks share a reduction of some steps: the largest power of two up to `most` that leaves each of them
// `least` steps and does not make more than `blocks` of the units of work.
int split(const CudaBackend& cuda, int64_t units, int64_t steps, int64_t least, int most, int64_t blocks) {
  int parts = 1;
  if (cuda.capability() < 90) return parts;
  while (parts < most && units * parts * 2 <= blocks && steps >= parts * 2 * least) parts *= 2;
  return parts;
}

template <class T, class F, int kRank, int kRowWarps, int kFragments>
void launch_project(CudaBackend& cuda, std::span<const Projection> projections, int64_t depth) {
  using Kernel = ProjectKernel<T, F, kRank, kRowWarps, kFragments>;
  Projections all{{}, ceil_div(int(projections[0].f.cols), kRank)};
  std::copy(projections.begin(), projections.end(), all.of);
  const int64_t count = int64_t(projections.size()) * all.rank_tiles,
                panels = ceil_div(projections[0].x.rows, Kernel::kRows);
  const int cluster = split(cuda, panels * count, ceil_div(depth, Kernel::kDepth), 2, 4, 2 * cuda.multiprocessors());
  launch("project", cuda.stream(),
         {dim3(unsigned(cluster), unsigned(panels), unsigned(count)), dim3(kThreads), Kernel::kSharedBytes, cluster,
          cuda.capability() >= 90},
         project_kernel<T, F, kRank, kRowWarps, kFragments>, all, cluster);
}

template <class T, class F>
void project_as(CudaBackend& cuda, std::span<const Projection> projections) {
  int64_t depth = 0;
  for (const Projection& p : projections) depth = std::max(depth, p.x.cols);
  // Measured on an H100: panels of 32 rows for few rows, and where a panel's reduction is short; else of 128.
  constexpr int64_t kFewRows = 512, kShort = 1024;
  with_rank_tile(projections[0].f.cols, [&](auto rank) {
    if (projections[0].x.rows <= kFewRows || depth <= kShort)
      launch_project<T, F, rank, 2, 1>(cuda, projections, depth);
    else
      launch_project<T, F, rank, 4, 2>(cuda, projections, depth);
  });
}

template <class T, int kRank, int kColWarps, int kFragments>
void launch_gradients(CudaBackend& cuda, std::span<const FactorGradient> gradients, Follows follows) {
  using Kernel = GradientKernel<kRank, kColWarps, kFragments>;
  Gradients all{};
  std::copy(gradients.begin(), gradients.end(), all.of);
  const int rank_tiles = ceil_div(int(gradients[0].out.cols), kRank);
  int64_t tiles = 0;
  for (const FactorGradient& g : gradients) tiles += Kernel::tiles(g);
  const int cluster =
      split(cuda, tiles * rank_tiles, ceil_div(gradients[0].x.rows, kDepth), 4, kMaxCluster, cuda.multiprocessors());
  launch("factor gradients", cuda.stream(),
         {dim3(unsigned(cluster), unsigned(tiles), unsigned(rank_tiles)), dim3(kThreads), Kernel::kSharedBytes, cluster,
          follows != Follows::other && cuda.capability() >= 90},
         gradient_kernel<T, kRank, kColWarps, kFragments>, all, cluster, follows);
}

template <class T>
void gradients_as(CudaBackend& cuda, std::span<const FactorGradient> gradients, Follows follows) {
  int64_t cols = 0;
  for (const FactorGradient& g : gradients) cols += g.x.cols;
  const bool large = gradients[0].x.rows >= 1024 && cols >= 4096;
  with_rank_tile(gradients[0].out.cols, [&](auto rank) {
    if (large)
      launch_gradients<T, rank, 4, 2>(cuda, gradients, follows);
    else
      launch_gradients<T, rank, 4, 1>(cuda, gradients, follows);
  });
}

}  // namespace

bool factors_fit(const Gpu& gpu, const DeviceMatrix& x) {
  return gpu.capability() >= 80 && x.dtype != DType::f32 && !x.transposed && x.cols % 8 == 0 && x.ld % 8 == 0 &&
         aligned(x.data);
}

void project(CudaBackend& cuda, std::span<const Projection> projections) {
  dispatch_16bit(projections[0].x.dtype, [&]<class T>(Type<T>) {
    projections[0].f.dtype == DType::f32 ? project_as<T, float>(cuda, projections)
                                         : project_as<T, T>(cuda, projections);
  });
}

void factor_gradients(CudaBackend& cuda, std::span<const FactorGradient> gradients, Follows follows) {
  dispatch_16bit(gradients[0].x.dtype, [&]<class T>(Type<T>) { gradients_as<T>(cuda, gradients, follows); });
}

}  // namespace wick
