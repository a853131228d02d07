#include "wick/backend/cuda/lora_factors.h"

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/mma.cuh"

namespace wick {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kDepth = 64;  // of the reduction, a step of the pipeline
constexpr int kPad = 8;     // elements behind each row of a tile, so that eight rows lie in different banks
constexpr int kStages = 4;
constexpr int kMaxRankTile = 64;

struct Steps {
  int begin, end;
};
// Part `rank` of `count` of the steps along a reduction.
__device__ __forceinline__ Steps part_of(int64_t extent, int rank, int count) {
  const int64_t steps = (extent + kDepth - 1) / kDepth;
  return {int(steps * rank / count), int(steps * (rank + 1) / count)};
}

// Starts copying rows [row, row + kRows) and columns [col, col + kCols) of a matrix into a tile; zeros beyond its ends.
template <int kRows, int kCols, class T>
__device__ __forceinline__ void load_tile(T* tile, const T* x, int64_t ld, int64_t row, int64_t col, int64_t rows,
                                          int64_t cols) {
  constexpr int kChunk = 8, kPerRow = kCols / kChunk;
  static_assert(kRows * kPerRow % kThreads == 0 || kRows * kPerRow < kThreads);
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kPerRow; i += kThreads) {
    const int r = i / kPerRow, c = i % kPerRow * kChunk;
    const bool valid = row + r < rows && col + c < cols;
    copy_async(tile + r * (kCols + kPad) + c, valid ? x + (row + r) * ld + col + c : x, valid);
  }
}

// A tile of a factor on its way from global memory through registers, where it becomes 16-bit. In shared memory it
// lies as in global memory: [kRank][kDepth + kPad] for down, [kDepth][kRank + kPad] for up.
template <class T, class F, int kRank>
struct FactorTile {
  static constexpr int kElements = kDepth * (kRank + kPad);  // the larger of both
  static constexpr int kGroups = kDepth * kRank / 4 / kThreads;
  Pack<F, 4> group[kGroups];

  struct Place {
    int row, col;  // in the tile
  };
  static __device__ __forceinline__ Place place(int i, bool up) {
    const int at = threadIdx.x + i * kThreads, per_row = (up ? kRank : kDepth) / 4;
    return {at / per_row, at % per_row * 4};
  }
  __device__ __forceinline__ void load(const F* f, int64_t ld, bool up, bool wide, int64_t depth, int64_t depth_end,
                                       int64_t rank, int64_t rank_end) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const Place p = place(i, up);
      const int64_t row = (up ? depth : rank) + p.row, col = (up ? rank : depth) + p.col;
      const int64_t rows = up ? depth_end : rank_end, cols = up ? rank_end : depth_end;
      const F* from = f + row * ld + col;
      group[i] = {};
      if (row >= rows) continue;
      if (wide && col + 4 <= cols) {
        group[i] = *reinterpret_cast<const Pack<F, 4>*>(from);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (col + j < cols) group[i].value[j] = from[j];
      }
    }
  }
  __device__ __forceinline__ void store(T* tile, bool up) const {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const Place p = place(i, up);
      Pack<T, 4> converted;
#pragma unroll
      for (int j = 0; j < 4; ++j) converted.value[j] = from_float<T>(to_float(group[i].value[j]));
      *reinterpret_cast<Pack<T, 4>*>(tile + p.row * ((up ? kRank : kDepth) + kPad) + p.col) = converted;
    }
  }
};

// Sums what the warps of a block, and the blocks of a cluster, have of the same [kRows, kRank] result, in that order.
// Each block of the cluster gets some of the rows, and calls store(row, column, sum) for their elements.
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

  template <int kCopies, class Store>
  static __device__ __forceinline__ void reduce(float* partials, int rank, int cluster, bool rows_fastest,
                                                const Store& store) {
    __syncthreads();
    if (kCopies > 1) {
      for (int i = threadIdx.x; i < kFloats; i += kThreads) {
        float total = partials[i];
#pragma unroll
        for (int copy = 1; copy < kCopies; ++copy) total += partials[copy * kFloats + i];
        partials[i] = total;
      }
      __syncthreads();
    }
    if (cluster > 1) cluster_sync();
    const int share = (kRows + cluster - 1) / cluster, begin = rank * share;
    const int mine = min(share, kRows - begin);
    for (int i = threadIdx.x; i < mine * kRank; i += kThreads) {
      const int row = begin + (rows_fastest ? i % mine : i / kRank), col = rows_fastest ? i / mine : i % kRank;
      float total = 0;
      for (int peer = 0; peer < cluster; ++peer)
        total += (cluster > 1 ? cluster_map(partials, peer) : partials)[row * kLd + col];
      store(row, col, total);
    }
    if (cluster > 1) cluster_sync();  // nobody leaves while its shared memory is read
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
  bool up;    // f is [depth, rank], else [rank, depth]
  bool wide;  // f may be read four elements at a time
};
template <class T, class F>
struct ProjectionPair {
  ProjectionArguments<T, F> of[2];
  int64_t rows;
  int rank, rank_tiles;
};

template <class T, class F, int kRank, int kRowWarps>
struct ProjectKernel {
  static constexpr int kRows = 16 * kRowWarps, kCopies = kWarps / kRowWarps;
  static constexpr int kTile = kRows * (kDepth + kPad);
  using Factor = FactorTile<T, F, kRank>;
  using Sums = Partial<kRows, kRank>;
  static constexpr size_t kPipeline = (kStages * kTile + 2 * Factor::kElements) * sizeof(T);
  static constexpr size_t kReduction = size_t(kCopies) * Sums::kFloats * sizeof(float);
  static constexpr size_t kSharedBytes = kPipeline > kReduction ? kPipeline : kReduction;
};

// Blocks along x share the reduction, along y the rows; z is the rank's tile of one of the products.
template <class T, class F, int kRank, int kRowWarps>
__global__ void __launch_bounds__(kThreads) project_kernel(const ProjectionPair<T, F> pair, int cluster) {
#if __CUDA_ARCH__ >= 800
  using Kernel = ProjectKernel<T, F, kRank, kRowWarps>;
  extern __shared__ __align__(128) char shared[];
  T* const tiles = reinterpret_cast<T*>(shared);
  T* const factors = tiles + kStages * Kernel::kTile;
  launch_dependents();

  const ProjectionArguments<T, F> p = pair.of[blockIdx.z / pair.rank_tiles];
  const int first_rank = int(blockIdx.z) % pair.rank_tiles * kRank;
  const int64_t first_row = int64_t(blockIdx.y) * Kernel::kRows;
  const Steps steps = part_of(p.depth, int(blockIdx.x), cluster);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row_warp = warp % kRowWarps, depth_warp = warp / kRowWarps;

  const auto load_x = [&](int step) {
    if (step < steps.end)
      load_tile<Kernel::kRows, kDepth>(tiles + (step - steps.begin) % kStages * Kernel::kTile, p.x, p.x_ld, first_row,
                                       int64_t(step) * kDepth, pair.rows, p.depth);
    copy_async_commit();
  };
  typename Kernel::Factor factor;
  const auto load_factor = [&](int step) {
    if (step < steps.end)
      factor.load(p.f, p.f_ld, p.up, p.wide, int64_t(step) * kDepth, p.depth, first_rank, pair.rank);
  };
  const auto factor_tile = [&](int step) { return factors + (step - steps.begin) % 2 * Kernel::Factor::kElements; };

#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) load_x(steps.begin + i);
  load_factor(steps.begin);
  factor.store(factor_tile(steps.begin), p.up);
  load_factor(steps.begin + 1);

  float sum[kRank / 8][4] = {};
  for (int step = steps.begin; step < steps.end; ++step) {
    copy_async_wait<kStages - 2>();
    __syncthreads();
    load_x(step + kStages - 1);
    factor.store(factor_tile(step + 1), p.up);
    load_factor(step + 2);
    const T* x = tiles + (step - steps.begin) % kStages * Kernel::kTile + row_warp * 16 * (kDepth + kPad);
    const T* f = factor_tile(step);
#pragma unroll
    for (int k = depth_warp * 16; k < kDepth; k += 16 * Kernel::kCopies) {
      uint32_t a[4], b[4];
      load_a(a, x + k, kDepth + kPad, lane);
#pragma unroll
      for (int n = 0; n < kRank; n += 16) {
        if (p.up)
          load_b(b, f + k * (kRank + kPad) + n, kRank + kPad, lane);
        else
          load_b_transposed(b, f + n * (kDepth + kPad) + k, kDepth + kPad, lane);
        mma<T>(sum[n / 8], a, b[0], b[1]);
        mma<T>(sum[n / 8 + 1], a, b[2], b[3]);
      }
    }
  }
  copy_async_wait<0>();
  __syncthreads();

  float* const partials = reinterpret_cast<float*>(shared);
  Kernel::Sums::put(partials + depth_warp * Kernel::Sums::kFloats, sum, row_warp * 16, lane);
  Kernel::Sums::template reduce<Kernel::kCopies>(
      partials, int(blockIdx.x), cluster, false, [&](int row, int col, float total) {
        if (first_row + row < pair.rows && first_rank + col < p.out_cols)
          p.out[(first_row + row) * p.out_ld + first_rank + col] = from_float<T>(p.scale * total);
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
struct GradientPair {
  GradientArguments<T> of[2];
  int64_t rows;
  int rank;
};

template <class T, int kRank, int kColWarps, int kFragments>
struct GradientKernel {
  static constexpr int kCols = 16 * kFragments * kColWarps, kCopies = kWarps / kColWarps;
  static constexpr int kStages = kCols > 128 ? 3 : 4;
  static constexpr int kTile = kDepth * (kCols + kPad), kSTile = kDepth * (kRank + kPad);
  using Sums = Partial<kCols, kRank>;
  static constexpr size_t kPipeline = size_t(kStages) * (kTile + kSTile) * sizeof(T);
  static constexpr size_t kReduction = size_t(kCopies) * Sums::kFloats * sizeof(float);
  static constexpr size_t kSharedBytes = kPipeline > kReduction ? kPipeline : kReduction;
};

// Blocks along x share the reduction over the rows, along y the columns of both products; z is the rank's tile.
template <class T, int kRank, int kColWarps, int kFragments>
__global__ void __launch_bounds__(kThreads) gradient_kernel(const GradientPair<T> pair, int cluster) {
#if __CUDA_ARCH__ >= 800
  using Kernel = GradientKernel<T, kRank, kColWarps, kFragments>;
  constexpr int kXLd = Kernel::kCols + kPad, kSLd = kRank + kPad;
  extern __shared__ __align__(128) char shared[];
  T* const x_tiles = reinterpret_cast<T*>(shared);
  T* const s_tiles = x_tiles + Kernel::kStages * Kernel::kTile;
  launch_dependents();

  const bool second = blockIdx.y >= pair.of[0].tiles;
  const GradientArguments<T> p = pair.of[second];
  const int64_t first_col = (int64_t(blockIdx.y) - (second ? pair.of[0].tiles : 0)) * Kernel::kCols;
  const int first_rank = int(blockIdx.z) * kRank;
  const int rank_end = (pair.rank + 7) / 8 * 8;
  const Steps steps = part_of(pair.rows, int(blockIdx.x), cluster);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int col_warp = warp % kColWarps, row_warp = warp / kColWarps;

  const auto load_x = [&](int step) {
    if (step < steps.end)
      load_tile<kDepth, Kernel::kCols>(x_tiles + (step - steps.begin) % Kernel::kStages * Kernel::kTile, p.x, p.x_ld,
                                       int64_t(step) * kDepth, first_col, pair.rows, p.cols);
  };
  const auto load_s = [&](int step) {
    if (step < steps.end)
      load_tile<kDepth, kRank>(s_tiles + (step - steps.begin) % Kernel::kStages * Kernel::kSTile, p.s, p.s_ld,
                               int64_t(step) * kDepth, first_rank, pair.rows, rank_end);
    copy_async_commit();
  };
  // x was there before the kernel that computes s.
#pragma unroll
  for (int i = 0; i < Kernel::kStages - 1; ++i) load_x(steps.begin + i);
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < Kernel::kStages - 1; ++i) load_s(steps.begin + i);

  float sum[kFragments][kRank / 8][4] = {};
  for (int step = steps.begin; step < steps.end; ++step) {
    copy_async_wait<Kernel::kStages - 2>();
    __syncthreads();
    load_x(step + Kernel::kStages - 1);
    load_s(step + Kernel::kStages - 1);
    const int stage = (step - steps.begin) % Kernel::kStages;
    const T* x = x_tiles + stage * Kernel::kTile + col_warp * 16 * kFragments;
    const T* s = s_tiles + stage * Kernel::kSTile;
#pragma unroll
    for (int k = row_warp * 16; k < kDepth; k += 16 * Kernel::kCopies) {
      uint32_t a[kFragments][4], b[4];
#pragma unroll
      for (int i = 0; i < kFragments; ++i) load_a_transposed(a[i], x + k * kXLd + 16 * i, kXLd, lane);
#pragma unroll
      for (int n = 0; n < kRank; n += 16) {
        load_b(b, s + k * kSLd + n, kSLd, lane);
#pragma unroll
        for (int i = 0; i < kFragments; ++i) {
          mma<T>(sum[i][n / 8], a[i], b[0], b[1]);
          mma<T>(sum[i][n / 8 + 1], a[i], b[2], b[3]);
        }
      }
    }
  }
  copy_async_wait<0>();
  __syncthreads();

  float* const partials = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < kFragments; ++i)
    Kernel::Sums::put(partials + row_warp * Kernel::Sums::kFloats, sum[i], (col_warp * kFragments + i) * 16, lane);
  Kernel::Sums::template reduce<Kernel::kCopies>(
      partials, int(blockIdx.x), cluster, p.col_step == 1, [&](int col, int r, float total) {
        if (first_col + col < p.cols && first_rank + r < pair.rank)
          p.out[(first_col + col) * p.col_step + (first_rank + r) * p.rank_step] = p.scale * total;
      });
#endif
}

// ---- launches

// The largest power of two up to `most` that leaves each block `least` steps and does not make more than `blocks`.
int split(const CudaBackend& cuda, int64_t units, int64_t steps, int64_t least, int64_t blocks) {
  int parts = 1;
  if (cuda.capability() < 90) return parts;
  while (parts < 8 && units * parts * 2 <= blocks && steps >= parts * 2 * least) parts *= 2;
  return parts;
}

// Calls f with the rank's tile as a constant: the smallest of 16, 32 and 64 that holds it, or tiles of 64.
template <class G>
void with_rank(int64_t rank, const G& g) {
  if (rank <= 16)
    g(std::integral_constant<int, 16>());
  else if (rank <= 32)
    g(std::integral_constant<int, 32>());
  else
    g(std::integral_constant<int, kMaxRankTile>());
}

template <class T, class F, int kRank, int kRowWarps>
void launch_project(CudaBackend& cuda, const ProjectionPair<T, F>& pair, int count, int64_t depth) {
  using Kernel = ProjectKernel<T, F, kRank, kRowWarps>;
  const int64_t panels = (pair.rows + Kernel::kRows - 1) / Kernel::kRows;
  const int cluster =
      split(cuda, panels * count * pair.rank_tiles, (depth + kDepth - 1) / kDepth, 1, 2 * cuda.multiprocessors());
  launch("project", cuda.stream(),
         {dim3(unsigned(cluster), unsigned(panels), unsigned(count * pair.rank_tiles)), dim3(kThreads),
          Kernel::kSharedBytes, cluster},
         project_kernel<T, F, kRank, kRowWarps>, pair, cluster);
}

template <class T, class F>
void project_as(CudaBackend& cuda, const Projection* projections, int count) {
  ProjectionPair<T, F> pair{};
  const Projection& first = projections[0];
  pair.rows = first.x.rows;
  pair.rank = int(first.f.cols);
  int64_t depth = 0;
  for (int i = 0; i < count; ++i) {
    const Projection& p = projections[i];
    const DeviceMatrix f = p.f.transposed ? p.f.t() : p.f;
    pair.of[i] = {static_cast<const T*>(p.x.data),
                  static_cast<const F*>(f.data),
                  static_cast<T*>(p.out.data),
                  p.x.ld,
                  f.ld,
                  p.out.ld,
                  p.x.cols,
                  int(p.out.cols),
                  p.scale,
                  !p.f.transposed,
                  f.ld % 4 == 0 && reinterpret_cast<uintptr_t>(f.data) % (4 * sizeof(F)) == 0};
    depth = std::max(depth, p.x.cols);
  }
  constexpr int64_t kFewRows = 512;
  with_rank(pair.rank, [&](auto rank) {
    pair.rank_tiles = (pair.rank + rank - 1) / rank;
    if (pair.rows <= kFewRows)
      launch_project<T, F, rank, 2>(cuda, pair, count, depth);
    else
      launch_project<T, F, rank, 8>(cuda, pair, count, depth);
  });
}

template <class T, int kRank, int kColWarps, int kFragments>
void launch_gradients(CudaBackend& cuda, GradientPair<T>& pair, int count, bool follows) {
  using Kernel = GradientKernel<T, kRank, kColWarps, kFragments>;
  const int rank_tiles = (pair.rank + kRank - 1) / kRank;
  int64_t tiles = 0;
  for (int i = 0; i < count; ++i) tiles += pair.of[i].tiles = (pair.of[i].cols + Kernel::kCols - 1) / Kernel::kCols;
  const int cluster = split(cuda, tiles * rank_tiles, (pair.rows + kDepth - 1) / kDepth, 2, 2 * cuda.multiprocessors());
  launch("factor gradients", cuda.stream(),
         {dim3(unsigned(cluster), unsigned(tiles), unsigned(rank_tiles)), dim3(kThreads), Kernel::kSharedBytes, cluster,
          follows && cuda.capability() >= 90},
         gradient_kernel<T, kRank, kColWarps, kFragments>, pair, cluster);
}

template <class T>
void gradients_as(CudaBackend& cuda, const FactorGradient* gradients, int count, bool follows) {
  GradientPair<T> pair{};
  pair.rows = gradients[0].x.rows;
  pair.rank = int(gradients[0].s.cols);
  int64_t cols = 0;
  for (int i = 0; i < count; ++i) {
    const FactorGradient& g = gradients[i];
    pair.of[i] = {static_cast<const T*>(g.x.data),
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
  const bool large = pair.rows >= 1024 && cols >= 4096;
  with_rank(pair.rank, [&](auto rank) {
    if (large)
      launch_gradients<T, rank, 8, 2>(cuda, pair, count, follows);
    else
      launch_gradients<T, rank, 4, 1>(cuda, pair, count, follows);
  });
}

}  // namespace

bool factors_fit(const CudaBackend& cuda, const DeviceMatrix& x) {
  return cuda.capability() >= 80 && x.dtype != DType::f32 && !x.transposed && x.cols % 8 == 0 && x.ld % 8 == 0 &&
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

void factor_gradients(CudaBackend& cuda, const FactorGradient* gradients, int count, bool follows) {
  dispatch_float(gradients[0].x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (!std::is_same_v<T, float>) gradients_as<T>(cuda, gradients, count, follows);
  });
}

}  // namespace wick
