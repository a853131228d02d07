#include "wick/backend/cuda/linear/lora_factors.h"

#include <algorithm>

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/mma.cuh"
#include "wick/backend/cuda/linear/lora_rank.h"

namespace wick {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kDepth = 64;  // of the reduction, a step of the pipeline
constexpr int kPad = 8;     // elements behind each row of a tile, so that eight rows lie in different banks
constexpr int kMaxCluster = 8;

// Part `rank` of `count` of the steps along a reduction.
struct Steps {
  int begin, end;
};
[[maybe_unused]] __device__ __forceinline__ Steps part_of(int64_t extent, int depth, int rank, int count) {
  const int steps = int((extent + depth - 1) / depth);
  return {steps * rank / count, steps * (rank + 1) / count};
}

// What a thread copies of each tile [kRows, kCols] of a matrix: 16 bytes in some rows; zeros beyond the matrix, whose
// rows are 16-byte aligned. kLd is the tile's.
template <class T, int kRows, int kCols, int kLd>
struct TileCopy {
  static constexpr int kChunk = 16 / sizeof(T), kPerRow = kCols / kChunk;
  static constexpr int kRowStep = kThreads / kPerRow, kCopies = (kRows + kRowStep - 1) / kRowStep;
  static_assert(kThreads % kPerRow == 0);
  const T* at;
  int64_t ld, rows_left, cols_left;  // of the matrix, from the thread's first element
  int place;                         // in the tile
  bool idle;                         // a small tile has less than one copy a thread

  __device__ __forceinline__ TileCopy(const T* x, int64_t ld, int64_t row, int64_t col, int64_t rows, int64_t cols)
      : ld(ld) {
    const int r = threadIdx.x / kPerRow, c = threadIdx.x % kPerRow * kChunk;
    at = x + (row + r) * ld + col + c;
    rows_left = rows - row - r;
    cols_left = cols - col - c;
    place = r * kLd + c;
    idle = r >= kRows;
  }
  __device__ __forceinline__ void start(T* tile) const {
    if (idle) return;
    const T* from = at;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      copy_async(tile + place + i * kRowStep * kLd, from, cols_left > 0 && rows_left > i * kRowStep);
      from += kRowStep * ld;
    }
  }
  __device__ __forceinline__ void next_cols() {
    at += kCols;
    cols_left -= kCols;
  }
  __device__ __forceinline__ void next_rows() {
    at += kRows * ld;
    rows_left -= kRows;
  }
  // The thread's part of a tile, which it has copied itself, into a tile of 16-bit elements.
  template <int kToLd, class To>
  __device__ __forceinline__ void convert(To* to, const T* tile) const {
    if (idle) return;
    const int from = place / kLd * kToLd + place % kLd;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const Pack<T> x = *reinterpret_cast<const Pack<T>*>(tile + place + i * kRowStep * kLd);
      Pack<To, kChunk> converted;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) converted.value[j] = from_float<To>(to_float(x.value[j]));
      *reinterpret_cast<Pack<To, kChunk>*>(to + from + i * kRowStep * kToLd) = converted;
    }
  }
};

// Sums what the warps of a block, and the blocks of a cluster, have of the same [kRows, kRank] result, in that order.
// Each block of the cluster gets some of the rows, and calls store(row, column, sums) for four columns at a time.
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

  static __device__ __forceinline__ void add(float4& total, const float4& part) {
    total.x += part.x;
    total.y += part.y;
    total.z += part.z;
    total.w += part.w;
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
    if (cluster > 1) cluster_leave();  // nobody leaves while its shared memory is read
  }
};

// ---- x f

template <class T, class F>
struct ProjectionArguments {
  const T* x;
  const F* f;
  T* out;
  int64_t x_ld, f_ld, out_ld, depth;
  int out_cols;
  float scale;
  T* scaled;
  int64_t scaled_ld;
  int scaled_cols;
  float scaled_by;
  bool up;  // f is [depth, rank], else [rank, depth]
};
template <class T, class F>
struct Projections {
  ProjectionArguments<T, F> of[kMostLayers];
  int64_t rows;
  int rank, rank_tiles;
};

// f lies in shared memory as in global memory: [kRank, kDepth] for down, [kDepth, kRank] for up. In f32 it comes
// through tiles of its own, from which each thread converts what it has copied.
template <class T, class F, int kRank, int kRowWarps, int kFragments>
struct ProjectKernel {
  static constexpr bool kConvert = !std::is_same_v<T, F>;
  static constexpr int kRows = 16 * kFragments * kRowWarps, kCopies = kWarps / kRowWarps;
  static constexpr bool kLarge = kRows == 128;  // then two blocks share a multiprocessor
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

// sum += x f over some steps of the reduction, for a warp's rows.
template <class T, class F, int kRank, int kRowWarps, int kFragments, bool kUp>
__device__ __forceinline__ void project_steps(float (&sum)[kFragments][kRank / 8][4],
                                              const ProjectionArguments<T, F>& p, int64_t rows, int rank,
                                              int64_t first_row, int first_rank, Steps steps, char* shared) {
  using Kernel = ProjectKernel<T, F, kRank, kRowWarps, kFragments>;
  constexpr int kStages = Kernel::kStages, kDepth = Kernel::kDepth, kXLd = Kernel::kXLd;
  constexpr bool kConvert = Kernel::kConvert;
  constexpr int kFactorRows = kUp ? kDepth : kRank, kFactorCols = kUp ? kRank : kDepth, kFactorLd = kFactorCols + kPad;
  using FactorCopy = TileCopy<F, kFactorRows, kFactorCols, kConvert ? kFactorCols : kFactorLd>;
  T* const x_tiles = reinterpret_cast<T*>(shared);
  T* const factors = x_tiles + kStages * Kernel::kXTile;
  F* const raw = reinterpret_cast<F*>(factors + (kConvert ? 2 : 0) * Kernel::kFactorTile);
  constexpr int kRawTile = kConvert ? Kernel::kRawTile : Kernel::kFactorTile;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row_warp = warp % kRowWarps, depth_warp = warp / kRowWarps;
  const int64_t depth = int64_t(steps.begin) * kDepth;
  const int count = steps.end - steps.begin;

  TileCopy<T, Kernel::kRows, kDepth, kXLd> x_copy(p.x, p.x_ld, first_row, depth, rows, p.depth);
  FactorCopy f_copy(p.f, p.f_ld, kUp ? depth : first_rank, kUp ? first_rank : depth, kUp ? p.depth : rank,
                    kUp ? rank : p.depth);
  int loaded = 0, load_stage = 0, stage = 0;
  const auto next = [](int s) { return s + 1 == kStages ? 0 : s + 1; };
  const auto load = [&] {
    if (loaded < count) {
      x_copy.start(x_tiles + load_stage * Kernel::kXTile);
      f_copy.start(raw + load_stage * kRawTile);
    }
    x_copy.next_cols();
    kUp ? f_copy.next_rows() : f_copy.next_cols();
    copy_async_commit();
    ++loaded;
    load_stage = next(load_stage);
  };
  const auto convert = [&](int step, int from) {
    if constexpr (kConvert)
      f_copy.template convert<kFactorLd>(factors + step % 2 * Kernel::kFactorTile, raw + from * kRawTile);
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) load();
  if (kConvert) {
    copy_async_wait<kStages - 2>();
    convert(0, 0);
  }
  for (int step = 0; step < count; ++step) {
    copy_async_wait<kStages - (kConvert ? 3 : 2)>();
    __syncthreads();
    load();
    if (step + 1 < count) convert(step + 1, next(stage));
    const T* x = x_tiles + stage * Kernel::kXTile + row_warp * 16 * kFragments * kXLd + depth_warp * 16;
    const T* f =
        factors + (kConvert ? step % 2 : stage) * Kernel::kFactorTile + depth_warp * 16 * (kUp ? kFactorLd : 1);
    stage = next(stage);
    // A warp's steps of 16, their operands read one step ahead.
    constexpr int kInner = kDepth / 16 / Kernel::kCopies, kApart = 16 * Kernel::kCopies;
    uint32_t a[2][kFragments][4], b[2][kRank / 16][4];
    const auto read = [&](int i) {
#pragma unroll
      for (int m = 0; m < kFragments; ++m) load_a(a[i % 2][m], x + i * kApart + 16 * m * kXLd, kXLd, lane);
#pragma unroll
      for (int n = 0; n < kRank / 16; ++n) {
        if (kUp)
          load_b(b[i % 2][n], f + i * kApart * kFactorLd + n * 16, kFactorLd, lane);
        else
          load_b_transposed(b[i % 2][n], f + n * 16 * kFactorLd + i * kApart, kFactorLd, lane);
      }
    };
    read(0);
#pragma unroll
    for (int i = 0; i < kInner; ++i) {
      if (i + 1 < kInner) read(i + 1);
#pragma unroll
      for (int n = 0; n < kRank / 16; ++n)
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          mma<T>(sum[m][2 * n], a[i % 2][m], b[i % 2][n][0], b[i % 2][n][1]);
          mma<T>(sum[m][2 * n + 1], a[i % 2][m], b[i % 2][n][2], b[i % 2][n][3]);
        }
    }
  }
  copy_async_wait<0>();
  __syncthreads();
}

// Blocks along x share the reduction, along y the rows; z is the rank's tile of one of the products.
template <class T, class F, int kRank, int kRowWarps, int kFragments>
__global__ void __launch_bounds__(kThreads, 2) project_kernel(const Projections<T, F> all, int cluster) {
#if __CUDA_ARCH__ >= 800
  using Kernel = ProjectKernel<T, F, kRank, kRowWarps, kFragments>;
  extern __shared__ __align__(128) char shared[];
  launch_dependents();

  const ProjectionArguments<T, F> p = all.of[blockIdx.z / all.rank_tiles];
  const int first_rank = int(blockIdx.z) % all.rank_tiles * kRank;
  const int64_t first_row = int64_t(blockIdx.y) * Kernel::kRows;
  const Steps steps = part_of(p.depth, Kernel::kDepth, int(blockIdx.x), cluster);
  float sum[kFragments][kRank / 8][4] = {};
  if (p.up)
    project_steps<T, F, kRank, kRowWarps, kFragments, true>(sum, p, all.rows, all.rank, first_row, first_rank, steps,
                                                            shared);
  else
    project_steps<T, F, kRank, kRowWarps, kFragments, false>(sum, p, all.rows, all.rank, first_row, first_rank, steps,
                                                             shared);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const partials = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int m = 0; m < kFragments; ++m)
    Kernel::Sums::put(partials + warp / kRowWarps * Kernel::Sums::kFloats, sum[m],
                      (warp % kRowWarps * kFragments + m) * 16, lane);
  Kernel::Sums::template reduce<Kernel::kCopies>(partials, int(blockIdx.x), cluster, false,
                                                 [&](int row, int col, const float(&total)[4]) {
                                                   if (first_row + row >= all.rows) return;
                                                   const auto write = [&](T* out, int64_t ld, int cols, float scale) {
                                                     out += (first_row + row) * ld + first_rank + col;
#pragma unroll
                                                     for (int j = 0; j < 4; ++j)
                                                       if (first_rank + col + j < cols)
                                                         out[j] = from_float<T>(scale * total[j]);
                                                   };
                                                   if (p.out) write(p.out, p.out_ld, p.out_cols, p.scale);
                                                   if (p.scaled)
                                                     write(p.scaled, p.scaled_ld, p.scaled_cols, p.scale * p.scaled_by);
                                                 });
#endif
}

// ---- x^T s

template <class T>
struct GradientArguments {
  const T* x;
  const T* s;
  float* out;
  int64_t x_ld, s_ld, cols;
  int64_t col_step, rank_step;  // of out
  int64_t tiles;                // of columns
  float scale;
};
template <class T>
struct Gradients {
  GradientArguments<T> of[2 * kMostLayers];
  int64_t rows;
  int rank;
};

template <class T, int kRank, int kColWarps, int kFragments>
struct GradientKernel {
  static constexpr int kCols = 16 * kFragments * kColWarps, kCopies = kWarps / kColWarps;
  static constexpr int kStages = 4;
  static constexpr int kXLd = kCols + kPad, kXTile = kDepth * kXLd;
  static constexpr int kSLd = kRank + kPad, kSTile = kDepth * kSLd;
  using Sums = Partial<kCols, kRank>;
  static constexpr size_t kPipeline = size_t(kStages) * (kXTile + kSTile) * sizeof(T);
  static constexpr size_t kReduction = size_t(kCopies) * Sums::kFloats * sizeof(float);
  static constexpr size_t kSharedBytes = kPipeline > kReduction ? kPipeline : kReduction;
};

// Blocks along x share the reduction over the rows, along y the columns of both products; z is the rank's tile.
template <class T, int kRank, int kColWarps, int kFragments>
__global__ void __launch_bounds__(kThreads, 2) gradient_kernel(const Gradients<T> all, int cluster, Follows follows) {
#if __CUDA_ARCH__ >= 800
  using Kernel = GradientKernel<T, kRank, kColWarps, kFragments>;
  constexpr int kStages = Kernel::kStages, kXLd = Kernel::kXLd, kSLd = Kernel::kSLd;
  extern __shared__ __align__(128) char shared[];
  T* const x_tiles = reinterpret_cast<T*>(shared);
  T* const s_tiles = x_tiles + kStages * Kernel::kXTile;
  launch_dependents();

  int which = 0;
  int64_t tile = blockIdx.y;
  while (tile >= all.of[which].tiles) tile -= all.of[which++].tiles;
  const GradientArguments<T> p = all.of[which];
  const int64_t first_col = tile * Kernel::kCols;
  const int first_rank = int(blockIdx.z) * kRank;
  const Steps steps = part_of(all.rows, kDepth, int(blockIdx.x), cluster);
  const int count = steps.end - steps.begin;
  const int64_t first_row = int64_t(steps.begin) * kDepth;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int col_warp = warp % kColWarps, row_warp = warp / kColWarps;

  TileCopy<T, kDepth, Kernel::kCols, kXLd> x_copy(p.x, p.x_ld, first_row, first_col, all.rows, p.cols);
  TileCopy<T, kDepth, kRank, kSLd> s_copy(p.s, p.s_ld, first_row, first_rank, all.rows, all.rank);
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

  float sum[kFragments][kRank / 8][4] = {};
  for (int step = 0; step < count; ++step) {
    copy_async_wait<kStages - 2>();
    __syncthreads();
    load_x();
    load_s();
    const T* x = x_tiles + step % kStages * Kernel::kXTile + row_warp * 16 * kXLd + col_warp * 16 * kFragments;
    const T* s = s_tiles + step % kStages * Kernel::kSTile + row_warp * 16 * kSLd;
    constexpr int kInner = kDepth / 16 / Kernel::kCopies, kApart = 16 * Kernel::kCopies;
    uint32_t a[2][kFragments][4], b[2][kRank / 16][4];
    const auto read = [&](int i) {
#pragma unroll
      for (int m = 0; m < kFragments; ++m) load_a_transposed(a[i % 2][m], x + i * kApart * kXLd + 16 * m, kXLd, lane);
#pragma unroll
      for (int n = 0; n < kRank / 16; ++n) load_b(b[i % 2][n], s + i * kApart * kSLd + 16 * n, kSLd, lane);
    };
    read(0);
#pragma unroll
    for (int i = 0; i < kInner; ++i) {
      if (i + 1 < kInner) read(i + 1);
#pragma unroll
      for (int n = 0; n < kRank / 16; ++n)
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          mma<T>(sum[m][2 * n], a[i % 2][m], b[i % 2][n][0], b[i % 2][n][1]);
          mma<T>(sum[m][2 * n + 1], a[i % 2][m], b[i % 2][n][2], b[i % 2][n][3]);
        }
    }
  }
  copy_async_wait<0>();
  __syncthreads();

  float* const partials = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int m = 0; m < kFragments; ++m)
    Kernel::Sums::put(partials + row_warp * Kernel::Sums::kFloats, sum[m], (col_warp * kFragments + m) * 16, lane);
  Kernel::Sums::template reduce<Kernel::kCopies>(
      partials, int(blockIdx.x), cluster, p.col_step == 1, [&](int col, int r, const float(&total)[4]) {
        if (first_col + col >= p.cols) return;
        float* out = p.out + (first_col + col) * p.col_step + (first_rank + r) * p.rank_step;
        const bool whole = p.rank_step == 1 && first_rank + r + 4 <= all.rank && p.col_step % 4 == 0;
        if (whole && reinterpret_cast<uintptr_t>(out) % 16 == 0) {
          *reinterpret_cast<float4*>(out) =
              make_float4(p.scale * total[0], p.scale * total[1], p.scale * total[2], p.scale * total[3]);
          return;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (first_rank + r + j < all.rank) out[j * p.rank_step] = p.scale * total[j];
      });
  if (follows == Follows::product) wait_for_previous();  // so that whoever waits for this kernel waits for both
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
void launch_project(CudaBackend& cuda, const Projections<T, F>& all, int count, int64_t depth) {
  using Kernel = ProjectKernel<T, F, kRank, kRowWarps, kFragments>;
  const int64_t panels = (all.rows + Kernel::kRows - 1) / Kernel::kRows;
  const int cluster = split(cuda, panels * count * all.rank_tiles, (depth + Kernel::kDepth - 1) / Kernel::kDepth, 2, 4,
                            2 * cuda.multiprocessors());
  launch("project", cuda.stream(),
         {dim3(unsigned(cluster), unsigned(panels), unsigned(count * all.rank_tiles)), dim3(kThreads),
          Kernel::kSharedBytes, cluster},
         project_kernel<T, F, kRank, kRowWarps, kFragments>, all, cluster);
}

template <class T, class F>
void project_as(CudaBackend& cuda, const Projection* projections, int count) {
  Projections<T, F> all{};
  const Projection& first = projections[0];
  all.rows = first.x.rows;
  all.rank = int(first.f.cols);
  int64_t depth = 0;
  for (int i = 0; i < count; ++i) {
    const Projection& p = projections[i];
    const DeviceMatrix f = p.f.transposed ? p.f.t() : p.f;
    all.of[i] = {static_cast<const T*>(p.x.data),
                 static_cast<const F*>(f.data),
                 static_cast<T*>(p.out.data),
                 p.x.ld,
                 f.ld,
                 p.out.ld,
                 p.x.cols,
                 int(p.out.cols),
                 p.scale,
                 static_cast<T*>(p.scaled.data),
                 p.scaled.ld,
                 int(p.scaled.cols),
                 p.scaled_by,
                 !p.f.transposed};
    depth = std::max(depth, p.x.cols);
  }
  // Measured on an H100: panels of 32 rows for few rows, and where a panel's reduction is short; else of 128.
  constexpr int64_t kFewRows = 512, kShort = 1024;
  with_rank_tile(all.rank, [&](auto rank) {
    all.rank_tiles = (all.rank + rank - 1) / rank;
    if (all.rows <= kFewRows || depth <= kShort)
      launch_project<T, F, rank, 2, 1>(cuda, all, count, depth);
    else
      launch_project<T, F, rank, 4, 2>(cuda, all, count, depth);
  });
}

template <class T, int kRank, int kColWarps, int kFragments>
void launch_gradients(CudaBackend& cuda, Gradients<T>& all, int count, Follows follows) {
  using Kernel = GradientKernel<T, kRank, kColWarps, kFragments>;
  const int rank_tiles = (all.rank + kRank - 1) / kRank;
  int64_t tiles = 0;
  for (int i = 0; i < count; ++i) tiles += all.of[i].tiles = (all.of[i].cols + Kernel::kCols - 1) / Kernel::kCols;
  const int cluster =
      split(cuda, tiles * rank_tiles, (all.rows + kDepth - 1) / kDepth, 4, kMaxCluster, cuda.multiprocessors());
  launch("factor gradients", cuda.stream(),
         {dim3(unsigned(cluster), unsigned(tiles), unsigned(rank_tiles)), dim3(kThreads), Kernel::kSharedBytes, cluster,
          follows != Follows::other && cuda.capability() >= 90},
         gradient_kernel<T, kRank, kColWarps, kFragments>, all, cluster, follows);
}

template <class T>
void gradients_as(CudaBackend& cuda, const FactorGradient* gradients, int count, Follows follows) {
  Gradients<T> all{};
  all.rows = gradients[0].x.rows;
  all.rank = int(gradients[0].out.cols);
  int64_t cols = 0;
  for (int i = 0; i < count; ++i) {
    const FactorGradient& g = gradients[i];
    all.of[i] = {static_cast<const T*>(g.x.data),
                 static_cast<const T*>(g.s.data),
                 static_cast<float*>(g.out.data),
                 g.x.ld,
                 g.s.ld,
                 g.x.cols,
                 g.out.transposed ? 1 : g.out.ld,
                 g.out.transposed ? g.out.ld : 1,
                 0,
                 g.scale};
    cols += g.x.cols;
  }
  const bool large = all.rows >= 1024 && cols >= 4096;
  with_rank_tile(all.rank, [&](auto rank) {
    if (large)
      launch_gradients<T, rank, 4, 2>(cuda, all, count, follows);
    else
      launch_gradients<T, rank, 4, 1>(cuda, all, count, follows);
  });
}

}  // namespace

bool factors_fit(const Gpu& gpu, const DeviceMatrix& x) {
  return gpu.capability() >= 80 && x.dtype != DType::f32 && !x.transposed && x.cols % 8 == 0 && x.ld % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

void project(CudaBackend& cuda, const Projection* projections, int count) {
  dispatch_float(projections[0].x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (!std::is_same_v<T, float>)
      projections[0].f.dtype == DType::f32 ? project_as<T, float>(cuda, projections, count)
                                           : project_as<T, T>(cuda, projections, count);
  });
}

void factor_gradients(CudaBackend& cuda, const FactorGradient* gradients, int count, Follows follows) {
  dispatch_float(gradients[0].x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (!std::is_same_v<T, float>) gradients_as<T>(cuda, gradients, count, follows);
  });
}

}  // namespace wick
