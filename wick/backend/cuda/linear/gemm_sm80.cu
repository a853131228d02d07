// A block makes one tile of y. Its warps copy tiles of both operands into shared memory several steps of the reduction
// ahead (cp.async), and read the operands of the next products (ldmatrix) while the tensor cores make these. The last
// steps take their tiles from `low` and `f` instead of x and w.
//
// A tile lies in shared memory as in global memory, its 16-byte chunks swizzled: the eight rows that ldmatrix reads at
// once lie in different banks.
#include "wick/backend/cuda/linear/extended_gemm.h"

#include <algorithm>
#include <limits>

#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/tile_copy.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {

namespace {

// A block's tile, those of its warps, the steps that are under way, how many blocks share an SM where it has the
// memory, and the depth of a step.
template <int kRows_, int kCols_, int kWarpRows_, int kWarpCols_, int kStages_, int kBlocks_, int kDepth_>
struct MmaTiling {
  static constexpr int kRows = kRows_, kCols = kCols_, kWarpRows = kWarpRows_, kWarpCols = kWarpCols_;
  static constexpr int kStages = kStages_, kBlocks = kBlocks_, kDepth = kDepth_;
  static constexpr int kRowWarps = kRows / kWarpRows, kThreads = 32 * kRowWarps * (kCols / kWarpCols);
  static constexpr int kRowBytes = kRows * kDepth * 2, kStageBytes = kRowBytes + kCols * kDepth * 2;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kSharedBytes >= kRows * kCols * 2, "y leaves through the same memory");
};

// The place in bytes of a chunk of 16 bytes in a tile with kCols elements a row.
template <int kCols>
__device__ __forceinline__ int chunk_at(int row, int chunk) {
  return SwizzledRows<kCols>::place(row, chunk * 8) * 2;
}

// Copies the steps of the reduction in their order: along x and w, then along low and f for the groups of the columns.
// kAcross: w and f are [depth, columns], else [columns, depth].
template <class T, class Tile, bool kAcross>
class Loader {
 public:
  __device__ __forceinline__ Loader(const ExtendedGemm& g, int row, int col)
      : g_(g),
        row_(row),
        col_(col),
        left_(ceil_div(int(g.x.cols), kDepth)),
        x_(g.x.data, g.x.ld, row, 0, g.x.rows, g.x.cols),
        w_(other(g.w, col)) {}

  __device__ __forceinline__ int steps() const {
    int steps = left_;
    for (int i = 0; i < g_.group_count; ++i)
      if (touches(g_.groups[i])) steps += ceil_div(int(g_.groups[i].f.rows), kDepth);
    return steps;
  }
  __device__ __forceinline__ void start_next(char* stage) {
    if (left_ == 0) enter_group();
    --left_;
    x_.start(reinterpret_cast<T*>(stage));
    w_.start(reinterpret_cast<T*>(stage + Tile::kRowBytes));
    x_.next_cols();
    if constexpr (kAcross)
      w_.next_rows();
    else
      w_.next_cols();
  }

 private:
  static constexpr int kDepth = Tile::kDepth;
  template <int kRows, int kCols>
  using Copy = TileCopy<T, Tile::kThreads, kRows, kCols, SwizzledRows<kCols>>;
  using XCopy = Copy<Tile::kRows, kDepth>;
  using WCopy = Copy<kAcross ? kDepth : Tile::kCols, kAcross ? Tile::kCols : kDepth>;

  // A tile of w, or of f: [depth, columns], transposed unless kAcross.
  static __device__ __forceinline__ WCopy other(const DeviceMatrix& m, int col) {
    if constexpr (kAcross)
      return WCopy(m.data, m.ld, 0, col, m.rows, m.cols);
    else
      return WCopy(m.data, m.ld, col, 0, m.cols, m.rows);
  }
  __device__ __forceinline__ bool touches(const ExtendedGemm::Group& group) const {
    const int begin = int(group.column);
    return begin < col_ + Tile::kCols && col_ < begin + int(group.f.cols);
  }
  __device__ __forceinline__ void enter_group() {
    while (!touches(g_.groups[group_])) ++group_;
    const ExtendedGemm::Group& group = g_.groups[group_++];
    left_ = ceil_div(int(group.f.rows), kDepth);
    x_ = XCopy(static_cast<const T*>(g_.low.data) + group.low_at, g_.low.ld, row_, 0, g_.x.rows, group.f.rows);
    w_ = other(group.f, col_ - int(group.column));
  }

  const ExtendedGemm& g_;
  int row_, col_, left_, group_ = 0;
  XCopy x_;
  WCopy w_;
};

// A warp's operands: its rows of x's tile and its columns of w's.
template <class T, class Tile, bool kAcross>
struct Warp {
  static constexpr int kM = Tile::kWarpRows / 16, kN = Tile::kWarpCols / 16, kDepth = Tile::kDepth;
  struct Operands {
    uint32_t a[kM][4], b[kN][4];
  };
  int lane, row, col;  // of its first element in the block's tile

  __device__ __forceinline__ Warp() {
    const int warp = int(threadIdx.x) / 32;
    lane = int(threadIdx.x) % 32;
    row = warp % Tile::kRowWarps * Tile::kWarpRows;
    col = warp / Tile::kRowWarps * Tile::kWarpCols;
  }
  __device__ __forceinline__ void read(Operands& to, const char* stage, int k16) const {
    const int x_at = chunk_at<kDepth>(row + lane % 16, lane / 16) ^ k16 * 32;
#pragma unroll
    for (int m = 0; m < kM; ++m) load_matrices(to.a[m], stage + x_at + m * 16 * kDepth * 2);
    const char* const w = stage + Tile::kRowBytes;
    if constexpr (kAcross) {
      const int at = chunk_at<Tile::kCols>(lane % 16, col / 8 + lane / 16);
#pragma unroll
      for (int n = 0; n < kN; ++n) load_matrices_transposed(to.b[n], w + (at ^ n * 32) + k16 * 16 * Tile::kCols * 2);
    } else {
      const int at = chunk_at<kDepth>(col + lane % 8 + lane / 16 * 8, lane / 8 % 2) ^ k16 * 32;
#pragma unroll
      for (int n = 0; n < kN; ++n) load_matrices(to.b[n], w + at + n * 16 * kDepth * 2);
    }
  }
  __device__ __forceinline__ void multiply(float (&sum)[kM][2 * kN][4], const Operands& of) const {
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma<T>(sum[m][2 * n], of.a[m], of.b[n][0], of.b[n][1]);
        mma<T>(sum[m][2 * n + 1], of.a[m], of.b[n][2], of.b[n][3]);
      }
  }
  // Turned about in the warp's own part of shared memory, so that whole lines leave.
  __device__ __forceinline__ void store(float (&sum)[kM][2 * kN][4], char* shared, const ExtendedGemm& g, int first_row,
                                        int first_col) const {
    const int rows = int(g.y.rows), cols = int(g.y.cols);
    constexpr int kChunks = Tile::kWarpCols / 8;
    char* const out = shared + threadIdx.x / 32 * (Tile::kWarpRows * Tile::kWarpCols * 2);
#pragma unroll
    for (int n = 0; n < 2 * kN; ++n) {
      const int y_col = first_col + col + n * 8 + lane % 4 * 2;
      const bool biased = g.bias && y_col < cols;
      const float left = biased ? g.bias[y_col] : 0, right = biased ? g.bias[y_col + 1] : 0;
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<uint32_t*>(out + chunk_at<Tile::kWarpCols>(m * 16 + half * 8 + lane / 4, n) +
                                       lane % 4 * 4) =
              pack<T>(sum[m][n][2 * half] + left, sum[m][n][2 * half + 1] + right);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Tile::kWarpRows * kChunks / 32; ++i) {
      const int line = (i * 32 + lane) / kChunks, chunk = lane % kChunks;
      const int y_row = first_row + row + line, y_col = first_col + col + chunk * 8;
      if (y_row >= rows || y_col >= cols) continue;
      uint4 sums = *reinterpret_cast<const uint4*>(out + chunk_at<Tile::kWarpCols>(line, chunk));
      if (g.residual.data)
        sums = sum_of_eights<T>(sums, *reinterpret_cast<const uint4*>(static_cast<const T*>(g.residual.data) +
                                                                      y_row * g.residual.ld + y_col));
      *reinterpret_cast<uint4*>(static_cast<T*>(g.y.data) + y_row * g.y.ld + y_col) = sums;
    }
  }
};

// Panels of some rows of tiles, column after column: blocks that run at once share their reads in the L2.
struct TileIndex {
  int row, col;
};
__host__ __device__ constexpr int tiles_of(int64_t extent, int tile) { return ceil_div(int(extent), tile); }
[[maybe_unused]] __device__ __forceinline__ TileIndex tile_at(int index, int row_tiles, int col_tiles) {
  constexpr int kPanel = 8;
  const int panel = index / (kPanel * col_tiles), within = index % (kPanel * col_tiles);
  const int height = min(kPanel, row_tiles - panel * kPanel);
  return {panel * kPanel + within % height, within / height};
}

template <class T, class Tile, bool kAcross>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    mma_gemm_kernel(const __grid_constant__ ExtendedGemm g) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) char shared[];
  const TileIndex tile = tile_at(int(blockIdx.x), tiles_of(g.y.rows, Tile::kRows), tiles_of(g.y.cols, Tile::kCols));
  const int first_row = tile.row * Tile::kRows, first_col = tile.col * Tile::kCols;
  constexpr int kStages = Tile::kStages, kInner = Tile::kDepth / 16;
  Loader<T, Tile, kAcross> loader(g, first_row, first_col);
  const int steps = loader.steps();
  int loaded = 0, load_at = 0, read_at = 0;  // the stages' places in shared memory
  const auto next = [](int at) { return at + Tile::kStageBytes == Tile::kSharedBytes ? 0 : at + Tile::kStageBytes; };
  const auto load = [&] {
    if (loaded < steps) loader.start_next(shared + load_at);
    copy_async_commit();
    ++loaded;
    load_at = next(load_at);
  };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) load();

  const Warp<T, Tile, kAcross> me;
  typename Warp<T, Tile, kAcross>::Operands operands[2];
  float sum[me.kM][2 * me.kN][4] = {};
  copy_async_wait<kStages - 2>();
  __syncthreads();
  me.read(operands[0], shared, 0);
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int k16 = 0; k16 < kInner; ++k16) {
      if (k16 + 1 == kInner) {  // everybody has read this step, and the next is there
        copy_async_wait<kStages - 2>();
        __syncthreads();
        read_at = next(read_at);
      }
      me.read(operands[(k16 + 1) % 2], shared + read_at, (k16 + 1) % kInner);
      if (k16 == 0) load();
      me.multiply(sum, operands[k16 % 2]);
    }
  }
  copy_async_wait<0>();
  __syncthreads();
  me.store(sum, shared, g, first_row, first_col);
#endif
}

// ---- launches

// Microseconds, measured on an H100: of 32 steps along the reduction where blocks share an SM, of those of a block
// alone, and of a tile's start and end.
struct TileCost {
  double shared, alone, ends;
};

// Calls f with the tile's MmaTiling and cost. Steps are deeper where a block often runs alone and waits for memory.
template <class F>
void with_tiling(MmaTile tile, const F& f) {
  switch (tile) {
    case MmaTile::rows128_cols256:
      return f(MmaTiling<128, 256, 64, 64, 4, 1, 32>(), TileCost{0.212, 0.555, 1.8});
    case MmaTile::rows128_cols128:
      return f(MmaTiling<128, 128, 64, 64, 3, 2, 64>(), TileCost{0.316, 0.220, 2.5});
    case MmaTile::rows64_cols128:
      return f(MmaTiling<64, 128, 32, 64, 4, 3, 32>(), TileCost{0.194, 0.259, 0.0});
    case MmaTile::rows64_cols64:
      return f(MmaTiling<64, 64, 32, 32, 4, 3, 64>(), TileCost{0.117, 0.057, 1.0});
    case MmaTile::rows32_cols64:
      return f(MmaTiling<32, 64, 16, 32, 6, 3, 64>(), TileCost{0.087, 0.052, 0.5});
  }
}

// Time of the busiest SM: bound either by all its tiles' steps (sharing the tensor cores) or by its blocks in waves of
// as many as fit at once.
template <class Tile>
double microseconds(const Gpu& gpu, const ExtendedGemm& g, const TileCost& cost) {
  constexpr double kLaunch = 3;
  constexpr int64_t kReserved = 1024;  // of shared memory, for each block
  const int64_t rank = g.group_count ? g.groups[0].f.rows : 0;
  const int64_t room = gpu.shared_bytes() / (Tile::kSharedBytes + kReserved);
  const int64_t at_once = std::clamp<int64_t>(room, 1, Tile::kBlocks);
  const int64_t tiles =
      ceil_div(ceil_div(g.y.rows, Tile::kRows) * ceil_div(g.y.cols, Tile::kCols), gpu.multiprocessors());
  const double steps = double((ceil_div(g.x.cols, Tile::kDepth) + ceil_div(rank, Tile::kDepth)) * Tile::kDepth) / 32;
  return kLaunch + std::max(double(tiles) * steps * cost.shared,
                            double(ceil_div(tiles, at_once)) * (steps * cost.alone + cost.ends));
}

}  // namespace

bool gemm_sm80_fits(const Gpu& gpu, const ExtendedGemm& g) {
  if (gpu.capability() < 80 || g.y.dtype == DType::f32 || g.y.transposed || g.x.transposed || g.low.transposed)
    return false;
  const auto fits = [&](const DeviceMatrix& m) {
    return !m.data || (m.dtype == g.y.dtype && m.ld % 8 == 0 && aligned(m.data));
  };
  for (const DeviceMatrix& m : {g.y, g.x, g.w, g.low})
    if (!fits(m)) return false;
  for (int i = 0; i < g.group_count; ++i)
    if (const DeviceMatrix& f = g.groups[size_t(i)].f; !fits(f) || f.transposed != g.w.transposed) return false;
  return g.y.cols % 8 == 0 && g.x.cols % 8 == 0;
}

MmaPlan plan_gemm_sm80(const Gpu& gpu, const ExtendedGemm& g) {
  MmaPlan best{MmaTile::rows128_cols128, std::numeric_limits<double>::infinity()};
  for (size_t tile = 0; tile < std::size(kMmaTileNames); ++tile)
    with_tiling(MmaTile(tile), [&](auto tiling, const TileCost& cost) {
      const double expected = microseconds<decltype(tiling)>(gpu, g, cost);
      if (expected < best.microseconds) best = {MmaTile(tile), expected};
    });
  return best;
}

void gemm_sm80(CudaBackend& cuda, const ExtendedGemm& g, MmaTile tile) {
  with_tiling(tile, [&](auto tiling, const TileCost&) {
    using Tile = decltype(tiling);
    const int tiles = tiles_of(g.y.rows, Tile::kRows) * tiles_of(g.y.cols, Tile::kCols);
    dispatch_16bit(g.y.dtype, [&]<class T>(Type<T>) {
      launch("extended product", cuda.stream(), {dim3(unsigned(tiles)), dim3(Tile::kThreads), Tile::kSharedBytes},
             g.w.transposed ? mma_gemm_kernel<T, Tile, false> : mma_gemm_kernel<T, Tile, true>, g);
    });
  });
}

}  // namespace wick
