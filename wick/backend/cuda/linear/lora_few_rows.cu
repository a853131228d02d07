// Operands go from global memory straight into the registers of mma.sync: at few rows a tile is used by one warp only,
// so shared memory would add nothing but latency. The order of a reduction is free as long as both operands agree on
// it, so each thread takes neighbouring elements along it, 16 bytes at a time.
//
// Blocks of a cluster share the reduction of x down^T or dy up; they add their parts in each other's shared memory.
#include "wick/backend/cuda/linear/lora_products.h"

#include <algorithm>

#include "wick/backend/cuda/device/barriers.cuh"
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/mma.cuh"
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kCluster = 8;
constexpr int kStep = 32;  // of a reduction: 8 elements of 16 bits a thread, four threads along it

[[maybe_unused]] __device__ __forceinline__ uint4 load_16_bytes(const void* from, bool valid) {
  return valid ? __ldg(static_cast<const uint4*>(from)) : uint4{};
}

// N elements whose first is aligned to all of them, up to 16 bytes, or zeros; those beyond `left` may be zeros.
template <class F, int N>
__device__ __forceinline__ Pack<F, N> load_factor(const F* from, int64_t left) {
  constexpr int kWidest = 16 / sizeof(F), kAtOnce = N < kWidest ? N : kWidest;
  Pack<F, N> all{};
#pragma unroll
  for (int i = 0; i < N; i += kAtOnce)
    if (i < left)
      *reinterpret_cast<Pack<F, kAtOnce>*>(all.value + i) = *reinterpret_cast<const Pack<F, kAtOnce>*>(from + i);
  return all;
}

// ---- x f^T, f = down or up^T, for 32 rows of x or 16: each warp has some of the steps along the reduction

// f [rank, depth] as mma's b, for a step: registers [n][0..1] for its first half, [n][2..3] for the second. Column j of
// fragment n is the rank's index kRank / 8 * j + n.
template <class T, class F, int kRank>
__device__ __forceinline__ void load_low_factor(uint32_t (&b)[kRank / 8][4], const DeviceMatrix& f, int64_t k,
                                                int lane) {
  constexpr int kColumns = kRank / 8;
  const int first = lane / 4 * kColumns, rank = int(f.rows);
  const F* const data = static_cast<const F*>(f.data);
  k += lane % 4 * 8;
  if (f.transposed) {
    Pack<F, kColumns> row[8];
#pragma unroll
    for (int j = 0; j < 8; ++j)
      row[j] = load_factor<F, kColumns>(data + (k + j) * f.ld + first, k < f.cols ? rank - first : 0);
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (std::is_same_v<T, F>) {
          const Pack<T, 2> both{{row[2 * j].value[n], row[2 * j + 1].value[n]}};
          b[n][j] = *reinterpret_cast<const uint32_t*>(&both);
        } else {
          b[n][j] = pack<T>(row[2 * j].value[n], row[2 * j + 1].value[n]);
        }
      }
  } else {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const Pack<F, 8> row = load_factor<F, 8>(data + (first + n) * f.ld + k, first + n < rank && k < f.cols ? 8 : 0);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (std::is_same_v<T, F>)
          b[n][j] = reinterpret_cast<const uint32_t*>(&row)[j];
        else
          b[n][j] = pack<T>(row.value[2 * j], row.value[2 * j + 1]);
      }
    }
  }
}

// Rows [row, row + 16 kFragments) of x f^T over this warp's steps of those from `begin` to `end`. Lane l holds the
// ranks kRank / 4 * (l % 4) and following of rows l / 4 and l / 4 + 8 of a fragment.
template <class T, class F, int kRank, int kFragments>
__device__ __forceinline__ void low_steps(float (&sum)[kFragments][kRank / 8][4], const DeviceMatrix& x,
                                          const DeviceMatrix& f, int64_t row, int begin, int end, int lane) {
  const T* const from = static_cast<const T*>(x.data) + lane % 4 * 8;
  for (int step = begin; step < end; step += kWarps) {
    const int64_t k = int64_t(step) * kStep;
    const bool inside = k + lane % 4 * 8 < x.cols;
    uint4 a[kFragments][2];
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t r = row + 16 * m + 8 * half + lane / 4;
        a[m][half] = load_16_bytes(from + r * x.ld + k, inside && r < x.rows);
      }
    uint32_t b[kRank / 8][4];
    load_low_factor<T, F, kRank>(b, f, k, lane);
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      const uint32_t first[4] = {a[m][0].x, a[m][1].x, a[m][0].y, a[m][1].y};
      const uint32_t second[4] = {a[m][0].z, a[m][1].z, a[m][0].w, a[m][1].w};
#pragma unroll
      for (int n = 0; n < kRank / 8; ++n) {
        mma<T>(sum[m][n], first, b[n][0], b[n][1]);
        mma<T>(sum[m][n], second, b[n][2], b[n][3]);
      }
    }
  }
}

template <int kRows, int kRank>
struct alignas(16) Partials {  // each warp's
  static constexpr int kLd = kRank == 16 ? kRank : kRank + 4;
  float of[kWarps][kRows][kLd];
};
template <int kRows, int kRank>
struct alignas(16) Inbox {  // contributions of the cluster's blocks
  float from[kRows][kRank];
  uint64_t arrived;

  __device__ __forceinline__ void open() {  // by one thread, before the cluster meets
    barrier_init(&arrived, 1);
    barrier_init_done();
  }
};

template <int kRows, int kRank>
__device__ __forceinline__ void put_partial(Partials<kRows, kRank>& partials,
                                            const float (&sum)[kRows / 16][kRank / 8][4], int warp, int lane) {
#pragma unroll
  for (int m = 0; m < kRows / 16; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* to = &partials.of[warp][16 * m + 8 * half + lane / 4][lane % 4 * (kRank / 4)];
#pragma unroll
      for (int c = 0; c < kRank / 4; c += 4) {
        const auto at = [&](int i) { return sum[m][i % (kRank / 8)][2 * half + i / (kRank / 8)]; };
        *reinterpret_cast<float4*>(to + c) = make_float4(at(c), at(c + 1), at(c + 2), at(c + 3));
      }
    }
}

// Four ranks of a row over the block's warps.
template <int kRows, int kRank>
__device__ __forceinline__ float4 sum_of_warps(const Partials<kRows, kRank>& partials, int row, int col) {
  float4 total{};
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) add(total, *reinterpret_cast<const float4*>(&partials.of[warp][row][col]));
  return total;
}

// ---- y += scale * x down^T up^T

constexpr int kGroup = 32;  // columns that a warp computes together, and how many such
template <int kRank>
constexpr int kGroups = kRank == kWidestRankTile ? 1 : 2;

// up [N, R] as mma's b for 32 columns from `col` on: column j of fragment n is column 8 (j / 2) + 2 n + j % 2, so that
// a thread gets eight neighbours of y.
template <class T, class F, int kRank>
__device__ __forceinline__ void load_up(uint32_t (&b)[kRank / 16][4][2], const DeviceMatrix& up, int64_t col,
                                        int lane) {
  const int j = lane / 4, rank = int(up.cols);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int64_t c = col + j / 2 * 8 + 2 * n + j % 2;
#pragma unroll
    for (int k = 0; k < kRank / 16; ++k) {
      const int first = 16 * k + lane % 4 * 4;
      const Pack<F, 4> four =
          load_factor<F, 4>(static_cast<const F*>(up.data) + c * up.ld + first, c < up.rows ? rank - first : 0);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (std::is_same_v<T, F>)
          b[k][n][half] = reinterpret_cast<const uint32_t*>(&four)[half];
        else
          b[k][n][half] = pack<T>(four.value[2 * half], four.value[2 * half + 1]);
      }
    }
  }
}

template <class T, int kRows, int kRank>
struct ProductShared {
  static constexpr int kSLd = kRank + 8;
  Partials<kRows, kRank> partials;
  Inbox<kRows * kCluster, kRank> inbox;
  alignas(16) T s[kRows * kSLd];
};

// Where a thread adds to y: eight columns in each group of its warp, in two rows of each fragment.
template <class T>
struct OutputPlace {
  const AdapterProduct& p;
  int warp, lane;

  __device__ __forceinline__ int64_t column(int g) const {
    return ((int64_t(g) * kWarps + warp) * gridDim.x + blockIdx.x) * kGroup;
  }
  __device__ __forceinline__ T* at(int g, int m, int half) const {
    return static_cast<T*>(p.y.data) + (16 * m + 8 * half + lane / 4) * p.y.ld + column(g) + lane % 4 * 8;
  }
  __device__ __forceinline__ bool inside(int g, int m, int half) const {
    return 16 * m + 8 * half + lane / 4 < p.y.rows && column(g) + lane % 4 * 8 < p.y.cols;
  }
};

// Inputs of the epilogue, loaded from the beginning on.
template <class T, class F, int kRank, int kFragments>
struct LoadedEarly {
  uint32_t up[kGroups<kRank>][kRank / 16][4][2];
  uint4 y[kGroups<kRank>][kFragments][2];

  __device__ __forceinline__ explicit LoadedEarly(const OutputPlace<T>& place) {
#pragma unroll
    for (int g = 0; g < kGroups<kRank>; ++g) {
      load_up<T, F, kRank>(up[g], place.p.up, place.column(g), place.lane);
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          y[g][m][half] = {};
          if (place.inside(g, m, half)) y[g][m][half] = *reinterpret_cast<const uint4*>(place.at(g, m, half));
        }
    }
  }
};

// s from the sums of all warps and blocks of the cluster, each block for itself.
template <class T, int kRows, int kRank>
__device__ __forceinline__ void gather_low(ProductShared<T, kRows, kRank>& shared, const AdapterProduct& p,
                                           const float (&sum)[kRows / 16][kRank / 8][4], int block, int warp,
                                           int lane) {
  put_partial<kRows, kRank>(shared.partials, sum, warp, lane);
  cluster_wait();  // the other blocks' barriers are there
  __syncthreads();
  if (threadIdx.x == 0) barrier_expect(&shared.inbox.arrived, int(sizeof(shared.inbox.from)));
  for (int i = threadIdx.x; i < kRows * kRank / 4; i += kThreads) {
    const int row = i / (kRank / 4), col = i % (kRank / 4) * 4;
    const float4 total = sum_of_warps<kRows, kRank>(shared.partials, row, col);
    for (int peer = 0; peer < kCluster; ++peer)
      push(&shared.inbox.from[block * kRows + row][col], total, &shared.inbox.arrived, peer);
  }
  barrier_wait_cluster(&shared.inbox.arrived, 0);
  for (int i = threadIdx.x; i < kRows * kRank; i += kThreads) {
    const int row = i / kRank, r = i % kRank;
    float total = 0;
#pragma unroll
    for (int peer = 0; peer < kCluster; ++peer) total += shared.inbox.from[peer * kRows + row][r];
    shared.s[row * shared.kSLd + r] = from_float<T>(p.scale * total);
    if (p.saved.data && blockIdx.x == 0 && row < p.x.rows && r < int(p.down.rows))
      static_cast<T*>(p.saved.data)[row * p.saved.ld + r] = from_float<T>(total);
  }
  __syncthreads();
}

// y += s up^T for rows of fragment m and the columns of group g; `a` is s as mma's operand.
template <class T, class F, int kRank, int kFragments>
__device__ __forceinline__ void add_to_y(const OutputPlace<T>& place, const LoadedEarly<T, F, kRank, kFragments>& early,
                                         const uint2 (&a)[kRank / 16][2], int g, int m) {
  float out[4][4] = {};
#pragma unroll
  for (int k = 0; k < kRank / 16; ++k) {
    const uint32_t operand[4] = {a[k][0].x, a[k][1].x, a[k][0].y, a[k][1].y};
#pragma unroll
    for (int n = 0; n < 4; ++n) mma<T>(out[n], operand, early.up[g][k][n][0], early.up[g][k][n][1]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!place.inside(g, m, half)) continue;
    const uint4& y = early.y[g][m][half];
    uint32_t words[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const auto before = *reinterpret_cast<const Pack<T, 2>*>(&words[n]);
      words[n] =
          pack<T>(to_float(before.value[0]) + out[n][2 * half], to_float(before.value[1]) + out[n][2 * half + 1]);
    }
    *reinterpret_cast<uint4*>(place.at(g, m, half)) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Each cluster computes all of s and some of y's columns.
template <class T, class F, int kRank, int kFragments>
__global__ void __launch_bounds__(kThreads, 1) product_kernel(const AdapterProduct p) {
#if __CUDA_ARCH__ >= 900
  constexpr int kRows = 16 * kFragments;
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<ProductShared<T, kRows, kRank>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = int(blockIdx.x) % kCluster;
  launch_dependents();
  if (threadIdx.x == 0) shared.inbox.open();
  cluster_arrive();
  wait_for_previous();

  const OutputPlace<T> place{p, warp, lane};
  const LoadedEarly<T, F, kRank, kFragments> early(place);
  const int steps = int(ceil_div(p.x.cols, kStep));
  float sum[kFragments][kRank / 8][4] = {};
  low_steps<T, F, kRank, kFragments>(sum, p.x, p.down, 0, steps * block / kCluster + warp,
                                     steps * (block + 1) / kCluster, lane);
  gather_low(shared, p, sum, block, warp, lane);
#pragma unroll
  for (int m = 0; m < kFragments; ++m) {
    uint2 a[kRank / 16][2];
#pragma unroll
    for (int k = 0; k < kRank / 16; ++k)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        a[k][half] = *reinterpret_cast<const uint2*>(shared.s + (16 * m + 8 * half + lane / 4) * shared.kSLd + 16 * k +
                                                     lane % 4 * 4);
#pragma unroll
    for (int g = 0; g < kGroups<kRank>; ++g) add_to_y(place, early, a, g, m);
  }
#endif
}

// ---- dup = scale * dy^T s, ddown = ds^T x

struct GradientTask {  // out [columns of x, R] = scale * x^T s for s = s_scale * from f^T
  DeviceMatrix from, f, x, out;
  float s_scale, scale;
  int tiles = 0;  // of x's columns
};

struct GradientArguments {
  GradientTask task[2];  // dup, then ddown
  void* low_t;           // [2][kRank][padded_rows]: s^T of both
  int64_t padded_rows;
  int count, row_tiles;
};

constexpr int kColumns = 64;  // of a block's tile of the gradients

// Chunks of 32 rows a warp, loaded before s is there.
template <int kRank>
constexpr int kPrefetch = kRank == 64 ? 4 : 2;

template <int kRank>
struct GradientShape {
  static constexpr int kRankWarps = kRank / 16, kRowWarps = kWarps / kRankWarps;
  static constexpr int kLd = kColumns + 4;
};

template <int kRows, int kRank>
struct GradientShared {
  Inbox<kRows, kRank> inbox;
  union {
    Partials<kRows, kRank> partials;
    float sums[GradientShape<kRank>::kRowWarps][kRank][GradientShape<kRank>::kLd];  // of the gradients
  };
};

// A barrier of all blocks of a grid: its highest bit flips when the last of them has come, and the lower bits are zero
// again. Waiting for a change of the old value works, as no block can be through before this one came.
__device__ uint32_t grid_barrier;

[[maybe_unused]] __device__ __forceinline__ uint32_t grid_barrier_value() {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(&grid_barrier) : "memory");
  return value;
}
[[maybe_unused]] __device__ __forceinline__ void grid_barrier_arrive() {
  const uint32_t add = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1;
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(&grid_barrier), "r"(add) : "memory");
}

template <class T>
__device__ __forceinline__ void load_chunk(uint4 (&to)[8], const DeviceMatrix& x, int64_t row, int64_t col, int lane) {
  row += lane % 4 * 8;
  col += lane / 4 * 8;
  const T* from = static_cast<const T*>(x.data) + row * x.ld + col;
#pragma unroll
  for (int j = 0; j < 8; ++j) to[j] = load_16_bytes(from + j * x.ld, row + j < x.rows && col < x.cols);
}

// sum += s^T x over 32 rows, for 16 ranks and 64 columns: lane l gets columns 16 (l % 4) and following of ranks l / 4
// and l / 4 + 8. `s` is the part of s^T for the thread's rows and these ranks.
template <class T>
__device__ __forceinline__ void add_chunk(float (&sum)[8][4], const uint4 (&s)[2], const uint4 (&x)[8]) {
  const uint32_t a[2][4] = {{s[0].x, s[1].x, s[0].y, s[1].y}, {s[0].z, s[1].z, s[0].w, s[1].w}};
  const auto word = [&](int row, int n) {
    const uint4& v = x[row];
    return n / 2 == 0 ? v.x : n / 2 == 1 ? v.y : n / 2 == 2 ? v.z : v.w;
  };
#pragma unroll
  for (int step = 0; step < 2; ++step)
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      uint32_t b[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 4 * step + 2 * half;
        b[half] = __byte_perm(word(row, n), word(row + 1, n), n % 2 ? 0x7632 : 0x5410);
      }
      mma<T>(sum[n], a[step], b[0], b[1]);
    }
}

// A tile of either gradient.
struct GradientTile {
  bool second;
  int64_t first_col;

  __device__ __forceinline__ GradientTile(const GradientArguments& p, int tile)
      : second(tile >= p.task[0].tiles), first_col(int64_t(second ? tile - p.task[0].tiles : tile) * kColumns) {}
};

// One round of chunks of a tile's x, those of this warp.
template <class T, int kRank>
__device__ __forceinline__ void load_round(uint4 (&x)[kPrefetch<kRank>][8], const GradientArguments& p, int tile,
                                           int round, int row_warp, int lane) {
  const GradientTile of(p, tile);
#pragma unroll
  for (int i = 0; i < kPrefetch<kRank>; ++i)
    load_chunk<T>(x[i], p.task[of.second].x,
                  int64_t((round * kPrefetch<kRank> + i) * GradientShape<kRank>::kRowWarps + row_warp) * 32,
                  of.first_col, lane);
}

// s or ds from the sums of all warps and blocks of a cluster, to low_t; each block has some of the rows.
template <class T, int kRows, int kRank>
__device__ __forceinline__ void share_low(GradientShared<kRows, kRank>& shared, const GradientArguments& p,
                                          const float (&sum)[kRows / 16][kRank / 8][4], int unit, int cluster, int warp,
                                          int lane) {
  const int block = int(blockIdx.x) % cluster, share = kRows / cluster;
  put_partial<kRows, kRank>(shared.partials, sum, warp, lane);
  if (cluster > 1) cluster_wait();  // the other blocks' barriers are there
  __syncthreads();
  if (cluster > 1 && threadIdx.x == 0) barrier_expect(&shared.inbox.arrived, int(sizeof(shared.inbox.from)));
  for (int i = threadIdx.x; i < kRows * kRank / 4; i += kThreads) {
    const int row = i / (kRank / 4), col = i % (kRank / 4) * 4, owner = row / share;
    const float4 total = sum_of_warps<kRows, kRank>(shared.partials, row, col);
    float* const to = &shared.inbox.from[block * share + row % share][col];
    if (cluster > 1)
      push(to, total, &shared.inbox.arrived, owner);
    else
      *reinterpret_cast<float4*>(to) = total;
  }
  if (cluster > 1)
    barrier_wait_cluster(&shared.inbox.arrived, 0);
  else
    __syncthreads();
  const float scale = p.task[unit / p.row_tiles].s_scale;
  for (int i = threadIdx.x; i < share / 4 * kRank; i += kThreads) {
    const int r = i % kRank, row = i / kRank * 4;
    float total[4] = {};
    for (int peer = 0; peer < cluster; ++peer)
#pragma unroll
      for (int j = 0; j < 4; ++j) total[j] += shared.inbox.from[peer * share + row + j][r];
    Pack<T, 4> four;
#pragma unroll
    for (int j = 0; j < 4; ++j) four.value[j] = from_float<T>(scale * total[j]);
    const int64_t at = int64_t(unit % p.row_tiles) * kRows + block * share + row;
    T* const low_t = static_cast<T*>(p.low_t) + (int64_t(unit / p.row_tiles) * kRank + r) * p.padded_rows;
    *reinterpret_cast<Pack<T, 4>*>(low_t + at) = four;
  }
}

// This warp's sum of a tile, over its chunks of rows. The first round of x may have been loaded.
template <class T, int kRank>
__device__ __forceinline__ void sum_tile(float (&grad)[8][4], uint4 (&x)[kPrefetch<kRank>][8], bool loaded,
                                         const GradientArguments& p, int tile, int warp, int lane) {
  using Shape = GradientShape<kRank>;
  const int rank_warp = warp % Shape::kRankWarps, row_warp = warp / Shape::kRankWarps;
  const int chunks = int(p.padded_rows / 32);
  const T* const low = static_cast<const T*>(p.low_t) +
                       (int64_t(GradientTile(p, tile).second) * kRank + 16 * rank_warp + lane / 4) * p.padded_rows +
                       lane % 4 * 8;
  for (int round = 0; round * kPrefetch<kRank> * Shape::kRowWarps < chunks; ++round) {
    if (round > 0 || !loaded) load_round<T, kRank>(x, p, tile, round, row_warp, lane);
    uint4 s[kPrefetch<kRank>][2];
#pragma unroll
    for (int i = 0; i < kPrefetch<kRank>; ++i) {
      const int chunk = (round * kPrefetch<kRank> + i) * Shape::kRowWarps + row_warp;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        s[i][half] = {};
        if (chunk < chunks)
          s[i][half] = __ldcg(reinterpret_cast<const uint4*>(low + 8 * half * p.padded_rows + chunk * 32));
      }
    }
#pragma unroll
    for (int i = 0; i < kPrefetch<kRank>; ++i) add_chunk<T>(grad, s[i], x[i]);
  }
}

// Adds up the warps' sums of a tile and stores them.
template <int kRows, int kRank>
__device__ __forceinline__ void store_tile(GradientShared<kRows, kRank>& shared, const float (&grad)[8][4],
                                           const GradientArguments& p, int tile, int warp, int lane) {
  using Shape = GradientShape<kRank>;
  const int rank_warp = warp % Shape::kRankWarps, row_warp = warp / Shape::kRankWarps;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int c = 0; c < 16; c += 4) {
      const auto at = [&](int i) { return grad[i % 8][2 * half + i / 8]; };
      *reinterpret_cast<float4*>(&shared.sums[row_warp][16 * rank_warp + 8 * half + lane / 4][lane % 4 * 16 + c]) =
          make_float4(at(c), at(c + 1), at(c + 2), at(c + 3));
    }
  __syncthreads();
  const GradientTile of(p, tile);
  const GradientTask& task = p.task[of.second];
  const int64_t col_step = task.out.transposed ? 1 : task.out.ld, rank_step = task.out.transposed ? task.out.ld : 1;
  const bool by_column = rank_step == 1;  // neighbouring threads get neighbouring ranks, or else columns
  for (int i = threadIdx.x; i < kRank * kColumns / 4; i += kThreads) {
    const int r = by_column ? i % kRank : i / (kColumns / 4);
    const int col = (by_column ? i / kRank : i % (kColumns / 4)) * 4;
    float4 total{};
#pragma unroll
    for (int w = 0; w < Shape::kRowWarps; ++w) add(total, *reinterpret_cast<const float4*>(&shared.sums[w][r][col]));
    if (r >= int(task.out.cols) || of.first_col + col >= task.x.cols) continue;  // in eights, so all four are inside
    const float scaled[4] = {task.scale * total.x, task.scale * total.y, task.scale * total.z, task.scale * total.w};
    float* const out = static_cast<float*>(task.out.data) + (of.first_col + col) * col_step + r * rank_step;
    if (col_step == 1 && aligned(out)) {
      *reinterpret_cast<float4*>(out) = make_float4(scaled[0], scaled[1], scaled[2], scaled[3]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[j * col_step] = scaled[j];
    }
  }
  __syncthreads();
}

// s and ds, by the first clusters; then, after all blocks have met, the tiles of both gradients.
template <class T, class F, int kRank, int kFragments>
__global__ void __launch_bounds__(kThreads, 1)
    gradients_kernel(const __grid_constant__ GradientArguments p, const int cluster) {
#if __CUDA_ARCH__ >= 900
  constexpr int kRows = 16 * kFragments;
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<GradientShared<kRows, kRank>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = int(blockIdx.x) % cluster;
  const int unit = int(blockIdx.x) / cluster, units = p.count * p.row_tiles;
  launch_dependents();
  if (cluster > 1) {
    if (threadIdx.x == 0) shared.inbox.open();
    cluster_arrive();
  }
  wait_for_previous();
  const uint32_t met_before = grid_barrier_value();

  float sum[kFragments][kRank / 8][4] = {};
  if (unit < units) {
    const GradientTask& task = p.task[unit / p.row_tiles];
    const int steps = int(ceil_div(task.from.cols, kStep));
    low_steps<T, F, kRank, kFragments>(sum, task.from, task.f, int64_t(unit % p.row_tiles) * kRows,
                                       steps * block / cluster + warp, steps * (block + 1) / cluster, lane);
  }
  // The first rows of the first tile, on their way while s is completed.
  const int tiles = p.task[0].tiles + p.task[1].tiles;
  uint4 x[kPrefetch<kRank>][8];
  if (int(blockIdx.x) < tiles)
    load_round<T, kRank>(x, p, int(blockIdx.x), 0, warp / GradientShape<kRank>::kRankWarps, lane);
  if (unit < units)
    share_low<T>(shared, p, sum, unit, cluster, warp, lane);
  else if (cluster > 1)
    cluster_wait();
  __syncthreads();
  if (threadIdx.x == 0) {
    grid_barrier_arrive();
    while (grid_barrier_value() >> 31 == met_before >> 31) {
    }
  }
  __syncthreads();

  for (int tile = int(blockIdx.x); tile < tiles; tile += int(gridDim.x)) {
    float grad[8][4] = {};
    sum_tile<T, kRank>(grad, x, tile == int(blockIdx.x), p, tile, warp, lane);
    store_tile(shared, grad, p, tile, warp, lane);
  }
#endif
}

// ---- launches

// Calls g with the types of the activations and of the factors.
template <class G>
void with_types(DType activations, DType factors, const G& g) {
  dispatch_16bit(activations, [&](auto type) { factors == DType::f32 ? g(type, Type<float>()) : g(type, type); });
}

constexpr int64_t kAdapterRows = 32, kTileRows = 32;

// A little below the number of SMs, so that clusters fit however the SMs are grouped.
int blocks_at_once(const Gpu& gpu) { return gpu.multiprocessors() * 31 / 32; }

int row_tiles(int64_t rows) { return int(ceil_div(rows, kTileRows)); }

// How many blocks share a reduction, so that all run at once and about half of the warps have a step to do.
int cluster_size(const CudaBackend& cuda, int units, int64_t depth) {
  int size = kCluster;
  while (size > 1 && (units * size > blocks_at_once(cuda) || depth < size * kWarps / 2 * kStep)) size /= 2;
  return size;
}

// Whether the device has room for all clusters of a launch at once.
template <class Kernel>
bool all_clusters_at_once(Kernel kernel, const Launch& l) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(l.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = l.grid;
  config.blockDim = l.block;
  config.dynamicSmemBytes = l.shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  const int bytes = int(l.shared_bytes);
  const bool asked = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess &&
                     cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess;
  if (!asked) cudaGetLastError();  // no launch has to report it
  return asked && clusters * l.cluster >= int(l.grid.x);
}

}  // namespace

bool few_rows_fit(const Gpu& gpu, const AdapterProduct& p, int64_t rank) {
  return gpu.capability() == 90 && p.x.rows <= kAdapterRows && rank <= kWidestRankTile && !p.y.transposed &&
         p.y.ld % 8 == 0 && p.y.cols % 8 == 0 && aligned(p.y.data);
}

bool few_rows_fit(const Gpu& gpu, int64_t rows, int64_t rank) {
  return gpu.capability() == 90 && rank <= kWidestRankTile && 2 * row_tiles(rows) <= blocks_at_once(gpu);
}

void few_rows_product(CudaBackend& cuda, const AdapterProduct& p) {
  with_types(p.x.dtype, p.down.dtype, [&]<class T, class F>(Type<T>, Type<F>) {
    with_rank_tile(p.down.rows, [&](auto rank) {
      constexpr int64_t kClusterColumns = kCluster * kWarps * kGroups<rank> * kGroup;
      const int64_t clusters = ceil_div(p.y.cols, kClusterColumns);
      const bool few = p.x.rows <= 16;
      const auto kernel = few ? product_kernel<T, F, rank, 1> : product_kernel<T, F, rank, 2>;
      const size_t bytes = few ? sizeof(ProductShared<T, 16, rank>) : sizeof(ProductShared<T, 32, rank>);
      launch("adapter", cuda.stream(), {dim3(unsigned(clusters * kCluster)), dim3(kThreads), bytes, kCluster, true},
             kernel, p);
    });
  });
}

bool few_rows_gradients(CudaBackend& cuda, const AdapterGradients& g) {
  bool fits = false;
  with_types(g.x.dtype, g.down.dtype, [&]<class T, class F>(Type<T>, Type<F>) {
    with_rank_tile(g.down.rows, [&](auto rank) {
      constexpr int kRows = int(kTileRows);
      GradientArguments p{};
      p.row_tiles = row_tiles(g.dy.rows);
      p.padded_rows = p.row_tiles * kRows;
      const auto add = [&](GradientTask task) {
        task.tiles = int(ceil_div(task.x.cols, kColumns));
        p.task[p.count++] = task;
      };
      if (g.dup.data) add({g.x, g.down, g.dy, g.dup, 1, g.scale});
      if (g.ddown.data) add({g.dy, g.up.t(), g.x, g.ddown.t(), g.scale, 1});
      const int units = p.count * p.row_tiles;
      const int cluster = cluster_size(cuda, units, std::max(g.x.cols, g.dy.cols));
      const int wanted = std::max(units * cluster, p.task[0].tiles + p.task[1].tiles);
      const int most = blocks_at_once(cuda) / cluster * cluster;
      const int blocks = std::min(most, ceil_div(wanted, cluster) * cluster);
      const auto kernel = gradients_kernel<T, F, rank, kRows / 16>;
      const Launch how{dim3(unsigned(blocks)), dim3(kThreads),      sizeof(GradientShared<kRows, rank>), cluster,
                       /*overlap=*/true,       /*cooperative=*/true};
      fits = all_clusters_at_once(kernel, how);
      if (!fits) return;
      const Scratch low(cuda, size_t(2 * rank * p.padded_rows) * sizeof(T));
      p.low_t = low.as<void>();
      launch("adapter gradients", cuda.stream(), how, kernel, p, cluster);
    });
  });
  return fits;
}

}  // namespace wick
