// Operands go from global memory straight into the registers of mma.sync: at few rows a tile is used by a warp or two,
// so shared memory would add nothing but latency. The order of a reduction is free as long as both operands agree on
// it, so each thread takes neighbouring elements along it, 16 bytes at a time. A warp works on 16 ranks, whatever the
// rank: code that runs once has to be short, for fetching it takes longer than running it.
//
// Blocks of a cluster share the reduction of x down^T or dy up; they add their parts in each other's shared memory.
#include "wick/backend/cuda/lora_few_rows.h"

#include <algorithm>
#include <climits>

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/mma.cuh"

namespace wick {

namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kClusterShift = 3, kCluster = 1 << kClusterShift;
constexpr int kRows = 32, kRanks = 16;  // that a warp multiplies
constexpr int kStep = 32;               // of a reduction: 8 elements of 16 bits a thread, four threads along it
constexpr int kMostRanks = 64;

template <class T>
__device__ __forceinline__ uint32_t pair(float a, float b) {
  const Pack<T, 2> both{{from_float<T>(a), from_float<T>(b)}};
  return *reinterpret_cast<const uint32_t*>(&both);
}
__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ __forceinline__ uint4 load_16_bytes(const void* from, bool valid) {
  return valid ? __ldg(static_cast<const uint4*>(from)) : uint4{};
}

__device__ __forceinline__ void add(float4& total, const float4& part) {
  total.x += part.x;
  total.y += part.y;
  total.z += part.z;
  total.w += part.w;
}

// ---- x f, f = down^T or up

template <class T, class F>
struct LowOperands {
  const T* x;
  const F* f;
  int64_t x_ld, f_ld;
  int depth;
  bool up;  // f is [depth, rank], else [rank, depth]
};

// What a thread has of a step: eight elements along the reduction of four rows of x, and of two ranks.
template <class T, class F, bool kUp>
struct LowStep {
  static constexpr bool kDirect = std::is_same_v<T, F>;
  // 16 bytes along the reduction at a time, or both ranks.
  using Piece = std::conditional_t<!kUp, uint4, std::conditional_t<kDirect, uint32_t, float2>>;
  static constexpr int kPieces = kUp ? 8 : 2 * int(sizeof(F) / 2);
  uint4 x[4];
  Piece f[kPieces];

  __device__ __forceinline__ void load(const LowOperands<T, F>& p, const T* x_row, const F* f_row, int rows_left,
                                       int ranks_left, int k) {
    const bool inside = k < p.depth;
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = load_16_bytes(x_row + i * 8 * p.x_ld + k, inside && i * 8 < rows_left);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      constexpr int kEach = kPieces / 2;  // of a rank's eight elements
      const F* const from = kUp ? f_row + (k + i) * p.f_ld : f_row + i / kEach * p.f_ld + k + i % kEach * (8 / kEach);
      f[i] = Piece{};
      if (inside && (kUp ? 0 : i / kEach) < ranks_left) f[i] = __ldg(reinterpret_cast<const Piece*>(from));
    }
  }
  // Elements 2 j and 2 j + 1 of the eight, of rank n of the two.
  __device__ __forceinline__ uint32_t factor(int n, int j) const {
    if constexpr (kUp && kDirect) return __byte_perm(f[2 * j], f[2 * j + 1], n ? 0x7632 : 0x5410);
    if constexpr (kUp && !kDirect) return n ? pair<T>(f[2 * j].y, f[2 * j + 1].y) : pair<T>(f[2 * j].x, f[2 * j + 1].x);
    if constexpr (!kUp && kDirect) return word(f[n], j);
    if constexpr (!kUp && !kDirect)
      return pair<T>(__uint_as_float(word(f[2 * n + j / 2], j % 2 * 2)),
                     __uint_as_float(word(f[2 * n + j / 2], j % 2 * 2 + 1)));
  }
  __device__ __forceinline__ void multiply(float (&sum)[2][2][4]) const {
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint4 &low = x[2 * m], &high = x[2 * m + 1];
          const uint32_t a[4] = {word(low, 2 * half), word(high, 2 * half), word(low, 2 * half + 1),
                                 word(high, 2 * half + 1)};
          mma<T>(sum[m][n], a, factor(n, 2 * half), factor(n, 2 * half + 1));
        }
  }
};

// Each warp's part of 16 ranks by 32 rows.
constexpr int kPartialLd = kRows + 4;
using Partials = float[kWarps][kRanks][kPartialLd];

__device__ __forceinline__ void put_partial(Partials& partials, const float (&sum)[2][2][4]) {
  const int lane = threadIdx.x % 32;
  float* const to = &partials[threadIdx.x / 32][lane % 4 * 4][lane / 4];
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) to[(i % 2 * 2 + n) * kPartialLd + 16 * m + i / 2 * 8] = sum[m][n][i];
}

// x f for 32 rows by a cluster: warps share the ranks, and warps and blocks the reduction. What can be worked out
// before the operands are there happens in the constructor.
template <class T, class F>
class LowProduct {
 public:
  // 2^tile_shift tiles of ranks, 2^cluster_shift blocks of which this is number `part`.
  __device__ __forceinline__ LowProduct(const LowOperands<T, F>& p, int row, int rows, int rank, int tile_shift,
                                        int part, int cluster_shift)
      : p_(p), tile_shift_(tile_shift) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = warp & ((1 << tile_shift) - 1);
    const int first = tile * kRanks + lane / 4 * 2, steps = (p.depth + kStep - 1) / kStep;
    const int begin = steps * part >> cluster_shift, end = steps * (part + 1) >> cluster_shift;
    row += lane / 4;
    x_ = p.x + row * p.x_ld;
    f_ = p.f + (p.up ? first : first * p.f_ld);
    rows_left_ = rows - row;
    ranks_left_ = rank - first;
    k_ = (begin + (warp >> tile_shift)) * kStep + lane % 4 * 8;
    end_ = end * kStep;
    busy_ = min(kWarps >> tile_shift, end - begin);
  }

  // The warp's part of the sums.
  __device__ __forceinline__ void multiply(Partials& partials) const {
    if (k_ >= end_) return;
    float sum[2][2][4] = {};
    if (p_.up)
      steps<true>(sum);
    else
      steps<false>(sum);
    put_partial(partials, sum);
  }
  // What the block has of four rows of a rank goes to deliver(rank, rows / 4, sums).
  template <class Deliver>
  __device__ __forceinline__ void deliver(const Partials& partials, const Deliver& deliver) const {
    constexpr int kQuads = kRows / 4;
    for (int i = threadIdx.x; i < kRanks * kQuads << tile_shift_; i += kThreads) {
      const int r = i / kQuads, quad = i % kQuads;
      float4 total{};
#pragma unroll 4
      for (int g = 0; g < busy_; ++g)
        add(total, *reinterpret_cast<const float4*>(&partials[(g << tile_shift_) + r / kRanks][r % kRanks][quad * 4]));
      deliver(r, quad, total);
    }
  }

 private:
  // Lane l holds the ranks 4 (l % 4) + 2 e + n of the rows 16 m + 8 h + l / 4, in sum[m][n][2 h + e].
  template <bool kUp>
  __device__ __forceinline__ void steps(float (&sum)[2][2][4]) const {
    const int stride = (kWarps >> tile_shift_) * kStep;
    LowStep<T, F, kUp> step, next;
    next.load(p_, x_, f_, rows_left_, ranks_left_, k_);
#pragma unroll 1
    for (int k = k_; k < end_; k += stride) {
      step = next;
      if (k + stride < end_) next.load(p_, x_, f_, rows_left_, ranks_left_, k + stride);
      step.multiply(sum);
    }
  }

  const LowOperands<T, F>& p_;
  const T* x_;
  const F* f_;
  int tile_shift_, rows_left_, ranks_left_, k_, end_, busy_;
};

// ---- y += scale * x down^T up^T

template <class T, class F>
struct ProductArguments {
  LowOperands<T, F> low;
  T* y;
  const F* up;
  T* saved;
  int64_t y_ld, up_ld, saved_ld;
  int rows, cols, rank, tile_shift;
  float scale;
};

constexpr int kGroup = 32;  // columns of y that a warp computes together

// Eight neighbours of four rows of y a thread, and up [N, R] as mma's b: column j of fragment n is column
// 8 (j / 2) + 2 n + j % 2 of the group.
template <class T, class F>
struct ProductGroup {
  const ProductArguments<T, F>& p;
  T* y_at;
  const F* up_at;
  int rows_left, cols_left;  // of y and of up's rows, from the thread's first element
  uint4 y[4];
  uint32_t b[4][2];  // of the first 16 ranks

  __device__ __forceinline__ explicit ProductGroup(const ProductArguments<T, F>& p) : p(p) {}

  __device__ __forceinline__ void choose(int first_col) {
    const int lane = threadIdx.x % 32, col = first_col + lane % 4 * 8;
    const int up_row = first_col + lane / 8 * 8 + lane / 4 % 2;
    y_at = p.y + lane / 4 * p.y_ld + col;
    up_at = p.up + up_row * p.up_ld + lane % 4 * 4;
    rows_left = col < p.cols ? p.rows - lane / 4 : 0;
    cols_left = p.cols - up_row;
  }
  __device__ __forceinline__ void load_up(int rank) {
    const bool inside = rank + int(threadIdx.x) % 4 * 4 < p.rank;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      using Four = std::conditional_t<std::is_same_v<T, F>, uint2, float4>;
      Four four{};
      if (inside && 2 * n < cols_left) four = __ldg(reinterpret_cast<const Four*>(up_at + 2 * n * p.up_ld + rank));
      if constexpr (std::is_same_v<T, F>) {
        b[n][0] = four.x;
        b[n][1] = four.y;
      } else {
        b[n][0] = pair<T>(four.x, four.y);
        b[n][1] = pair<T>(four.z, four.w);
      }
    }
  }
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      y[i] = {};
      if (i * 8 < rows_left) y[i] = *reinterpret_cast<const uint4*>(y_at + i * 8 * p.y_ld);
    }
    load_up(0);
  }
  // s [32, R] lies in shared memory.
  __device__ __forceinline__ void multiply_and_store(const T* s, int s_ld) {
    const int lane = threadIdx.x % 32;
    float sum[2][4][4] = {};
#pragma unroll 1
    for (int k = 0;;) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const T* const row = s + (16 * m + lane / 4) * s_ld + k + lane % 4 * 4;
        const uint2 low = *reinterpret_cast<const uint2*>(row), high = *reinterpret_cast<const uint2*>(row + 8 * s_ld);
        const uint32_t a[4] = {low.x, high.x, low.y, high.y};
#pragma unroll
        for (int n = 0; n < 4; ++n) mma<T>(sum[m][n], a, b[n][0], b[n][1]);
      }
      if ((k += kRanks) >= p.rank) break;
      load_up(k);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t words[4] = {y[i].x, y[i].y, y[i].z, y[i].w};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const auto before = *reinterpret_cast<const Pack<T, 2>*>(&words[n]);
        const float* added = &sum[i / 2][n][i % 2 * 2];
        words[n] = pair<T>(to_float(before.value[0]) + added[0], to_float(before.value[1]) + added[1]);
      }
      if (i * 8 < rows_left)
        *reinterpret_cast<uint4*>(y_at + i * 8 * p.y_ld) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
};

template <class T>
struct ProductShared {
  static constexpr int kSLd = kMostRanks + 8;
  alignas(16) Partials partials;
  float4 inbox[kCluster][kMostRanks][kRows / 4];
  alignas(16) T s[kRows * kSLd];
  uint64_t arrived;
};

// Each cluster computes all of s and some of y's columns.
template <class T, class F>
__global__ void __launch_bounds__(kThreads, 1) product_kernel(const __grid_constant__ ProductArguments<T, F> p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<ProductShared<T>*>(memory);
  constexpr int kSLd = ProductShared<T>::kSLd;
  const int part = int(blockIdx.x) % kCluster, ranks = kRanks << p.tile_shift, quads = (p.rows + 3) / 4;
  launch_dependents();
  if (threadIdx.x == 0) {
    transaction_barrier_init(&shared.arrived);
    transaction_barrier_expect(&shared.arrived, kCluster * ranks * quads * int(sizeof(float4)));
  }
  cluster_arrive();
  int col = (int(blockIdx.x) + int(threadIdx.x) / 32 * int(gridDim.x)) * kGroup;
  const LowProduct<T, F> low(p.low, 0, p.rows, p.rank, p.tile_shift, part, kClusterShift);
  ProductGroup<T, F> group(p);
  group.choose(col);
  cluster_wait();  // the other blocks' barriers are there
  wait_for_previous();

  group.load();
  low.multiply(shared.partials);
  __syncthreads();
  low.deliver(shared.partials, [&](int r, int quad, const float4& sums) {
    if (quad >= quads) return;
#pragma unroll
    for (int peer = 0; peer < kCluster; ++peer) push(&shared.inbox[part][r][quad].x, sums, &shared.arrived, peer);
  });
  transaction_barrier_wait(&shared.arrived);
#pragma unroll 1
  for (int i = threadIdx.x; i < ranks * (kRows / 4); i += kThreads) {
    const int r = i / (kRows / 4), quad = i % (kRows / 4);
    if (quad >= quads) continue;
    float4 total{};
#pragma unroll
    for (int peer = 0; peer < kCluster; ++peer) add(total, shared.inbox[peer][r][quad]);
    const float four[4] = {total.x, total.y, total.z, total.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = quad * 4 + j;
      shared.s[row * kSLd + r] = from_float<T>(p.scale * four[j]);
      if (p.saved && blockIdx.x == 0 && row < p.rows && r < p.rank)
        p.saved[row * p.saved_ld + r] = from_float<T>(four[j]);
    }
  }
  __syncthreads();
#pragma unroll 1
  while (col < p.cols) {
    group.multiply_and_store(shared.s, kSLd);
    if ((col += kWarps * int(gridDim.x) * kGroup) >= p.cols) break;
    group.choose(col);
    group.load();
  }
#endif
}

// ---- dup = scale * dy^T s, ddown = ds^T x

template <class T>
struct GradientTask {  // [cols, rank] = scale * x^T s, as x lies
  const T* x;
  float* out;
  int64_t x_ld, col_step, rank_step;
  int cols, tiles;
  float scale;
};

template <class T, class F>
struct GradientArguments {
  LowOperands<T, F> low[2];  // s, then ds
  float low_scale[2];
  GradientTask<T> task[2];  // dup, then ddown
  T* low_t;                 // [2][ranks][padded_rows]: s^T and ds^T
  int rows, padded_rows, rank, tile_shift, count, row_tiles, cluster_shift;
};

constexpr int kColumns = 64;  // of a block's tile of the gradients
constexpr int kPrefetch = 2;  // chunks of 32 rows a warp, loaded before s is there
constexpr int kSumsLd = kColumns + 4;

struct GradientShared {
  union {
    alignas(16) Partials partials;
    float sums[kWarps][kRanks][kSumsLd];  // of the gradients
  };
  float4 inbox[kCluster][kMostRanks];
  uint64_t arrived;
};

// All blocks of a grid wait for each other: its highest bit turns when the last of them came, and the others are zero
// again. Waiting for the value of before works as nobody can be through before this block came.
__device__ uint32_t grid_barrier;

__device__ __forceinline__ uint32_t grid_barrier_value() {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(&grid_barrier) : "memory");
  return value;
}
__device__ __forceinline__ void grid_barrier_arrive() {
  const uint32_t add = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1;
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(&grid_barrier), "r"(add) : "memory");
}

// sum += s^T x over 32 rows, for 16 ranks and 64 columns: lane l gets columns 16 (l % 4) and following of ranks l / 4
// and l / 4 + 8. The thread has eight rows: of x eight columns, of s^T these two ranks.
template <class T>
__device__ __forceinline__ void add_chunk(float (&sum)[8][4], const uint4 (&s)[2], const uint4 (&x)[8]) {
  const uint32_t a[2][4] = {{s[0].x, s[1].x, s[0].y, s[1].y}, {s[0].z, s[1].z, s[0].w, s[1].w}};
#pragma unroll
  for (int step = 0; step < 2; ++step)
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      uint32_t b[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 4 * step + 2 * half;
        b[half] = __byte_perm(word(x[row], n / 2), word(x[row + 1], n / 2), n % 2 ? 0x7632 : 0x5410);
      }
      mma<T>(sum[n], a[step], b[0], b[1]);
    }
}

// A block's tile of a gradient: warps share the ranks and the rows.
template <class T, class F>
struct GradientTile {
  const GradientArguments<T, F>& p;
  const int tile_shift, ranks, groups, rank_tile, group;
  bool second;
  int first_col, rows_left;  // rows from the thread's first
  const T* x_at;
  uint4 x[kPrefetch][8];

  __device__ __forceinline__ explicit GradientTile(const GradientArguments<T, F>& p)
      : p(p),
        tile_shift(p.tile_shift),
        ranks(kRanks << tile_shift),
        groups(kWarps >> tile_shift),
        rank_tile(int(threadIdx.x) / 32 & ((1 << tile_shift) - 1)),
        group(int(threadIdx.x) / 32 >> tile_shift) {}

  __device__ __forceinline__ void choose(int tile) {
    second = tile >= p.task[0].tiles;
    first_col = (second ? tile - p.task[0].tiles : tile) * kColumns;
    const GradientTask<T>& task = p.task[second];
    const int row = group * 32 + threadIdx.x % 4 * 8, col = first_col + threadIdx.x % 32 / 4 * 8;
    x_at = task.x + row * task.x_ld + col;
    rows_left = col < task.cols ? p.rows - row : 0;
  }
  // Its chunks are the warp's i-th and following ones.
  __device__ __forceinline__ void load(int i) {
    const int64_t ld = p.task[second].x_ld;
#pragma unroll
    for (int c = 0; c < kPrefetch; ++c) {
      const int rows = (i + c) * groups * 32;
#pragma unroll
      for (int j = 0; j < 8; ++j) x[c][j] = load_16_bytes(x_at + (rows + j) * ld, rows + j < rows_left);
    }
  }
  __device__ __forceinline__ void multiply(float (&sum)[8][4], int i) const {
    const int lane = threadIdx.x % 32;
    const T* const low = p.low_t + (int64_t(second) * ranks + rank_tile * kRanks + lane / 4) * p.padded_rows;
    uint4 s[kPrefetch][2];
#pragma unroll
    for (int c = 0; c < kPrefetch; ++c) {
      const int row = (group + (i + c) * groups) * 32 + lane % 4 * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        s[c][half] = {};
        if (row < p.padded_rows)  // written by other blocks: not from the L1
          s[c][half] = __ldcg(reinterpret_cast<const uint4*>(low + half * 8 * p.padded_rows + row));
      }
    }
#pragma unroll
    for (int c = 0; c < kPrefetch; ++c)
      if ((group + (i + c) * groups) * 32 < p.padded_rows) add_chunk<T>(sum, s[c], x[c]);
  }
  __device__ __forceinline__ void put(float (&sums)[kWarps][kRanks][kSumsLd], const float (&sum)[8][4]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int c = 0; c < 16; c += 4) {
        const auto at = [&](int i) { return sum[i % 8][2 * half + i / 8]; };
        *reinterpret_cast<float4*>(&sums[threadIdx.x / 32][8 * half + lane / 4][lane % 4 * 16 + c]) =
            make_float4(at(c), at(c + 1), at(c + 2), at(c + 3));
      }
  }
  __device__ __forceinline__ void store(const float (&sums)[kWarps][kRanks][kSumsLd]) const {
    const GradientTask<T>& task = p.task[second];
    const bool by_column = task.rank_step == 1;  // neighbouring threads get neighbouring ranks, or else columns
#pragma unroll 1
    for (int i = threadIdx.x; i < ranks * (kColumns / 4); i += kThreads) {
      const int r = by_column ? i & (ranks - 1) : i / (kColumns / 4);
      const int c = (by_column ? i >> (tile_shift + 4) : i % (kColumns / 4)) * 4;
      if (r >= p.rank || first_col + c >= task.cols) continue;  // in eights, so all four are inside
      float4 total{};
#pragma unroll 4
      for (int g = 0; g < min(groups, p.row_tiles); ++g)
        add(total, *reinterpret_cast<const float4*>(&sums[(g << tile_shift) + r / kRanks][r % kRanks][c]));
      const float4 out =
          make_float4(task.scale * total.x, task.scale * total.y, task.scale * total.z, task.scale * total.w);
      float* const to = task.out + (first_col + c) * task.col_step + r * task.rank_step;
      if (task.col_step == 1 && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
        *reinterpret_cast<float4*>(to) = out;
      } else {
        to[0] = out.x;
        to[task.col_step] = out.y;
        to[2 * task.col_step] = out.z;
        to[3 * task.col_step] = out.w;
      }
    }
  }
};

// s and ds, by the first clusters; then, after all blocks have met, the tiles of both gradients.
template <class T, class F>
__global__ void __launch_bounds__(kThreads, 1) gradients_kernel(const __grid_constant__ GradientArguments<T, F> p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<GradientShared*>(memory);
  const int unit = int(blockIdx.x) >> p.cluster_shift, part = int(blockIdx.x) & ((1 << p.cluster_shift) - 1);
  const bool computes_low = unit < p.count * p.row_tiles, second = unit >= p.row_tiles;
  const int row_tile = second ? unit - p.row_tiles : unit;
  const int share_shift = 3 - p.cluster_shift;  // each block of the cluster adds up so many times four rows
  const int tiles = p.task[0].tiles + p.task[1].tiles, ranks = kRanks << p.tile_shift;
  static_assert(kRows / 4 == 1 << 3);
  launch_dependents();
  if (threadIdx.x == 0) {
    transaction_barrier_init(&shared.arrived);
    transaction_barrier_expect(&shared.arrived, kRows / 4 * ranks * int(sizeof(float4)));
  }
  cluster_arrive();
  const LowProduct<T, F> low(p.low[second], row_tile * kRows, p.rows, p.rank, p.tile_shift, part, p.cluster_shift);
  GradientTile<T, F> t(p);
  t.choose(int(blockIdx.x));
  cluster_wait();  // the other blocks' barriers are there
  wait_for_previous();
  const uint32_t met_before = grid_barrier_value();

  if (computes_low) {
    low.multiply(shared.partials);
    __syncthreads();
    low.deliver(shared.partials, [&](int r, int quad, const float4& sums) {
      const int place = quad & ((1 << share_shift) - 1);
      push(&shared.inbox[(part << share_shift) + place][r].x, sums, &shared.arrived, quad >> share_shift);
    });
  }
  t.load(0);  // the first rows of the first tile are on their way while s is completed
  if (computes_low) {
    transaction_barrier_wait(&shared.arrived);
    const float scale = p.low_scale[second];
    for (int i = threadIdx.x; i < ranks << share_shift; i += kThreads) {
      const int r = i & (ranks - 1), place = i >> (p.tile_shift + 4);
      float4 total{};
#pragma unroll 4
      for (int peer = 0; peer < 1 << p.cluster_shift; ++peer)
        add(total, shared.inbox[(peer << share_shift) + place][r]);
      const int row = row_tile * kRows + ((part << share_shift) + place) * 4;
      *reinterpret_cast<uint2*>(p.low_t + (int64_t(second) * ranks + r) * p.padded_rows + row) =
          make_uint2(pair<T>(scale * total.x, scale * total.y), pair<T>(scale * total.z, scale * total.w));
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    grid_barrier_arrive();
    while (grid_barrier_value() >> 31 == met_before >> 31) {
    }
  }
  __syncthreads();

  const int most = (p.padded_rows / 32 + t.groups - 1) / t.groups;  // chunks a warp
#pragma unroll 1
  for (int tile = int(blockIdx.x); tile < tiles; tile += int(gridDim.x)) {
    float sum[8][4] = {};
#pragma unroll 1
    for (int i = 0; i < most; i += kPrefetch) {
      if (tile != int(blockIdx.x) && i == 0) t.choose(tile);
      if (tile != int(blockIdx.x) || i > 0) t.load(i);
      t.multiply(sum, i);
    }
    __syncthreads();  // the tile before has been read
    t.put(shared.sums, sum);
    __syncthreads();
    t.store(shared.sums);
  }
#endif
}

// ---- launches

// Calls g with the types of the activations and of the factors.
template <class G>
void with_types(DType activations, DType factors, const G& g) {
  dispatch_float(activations, [&]<class T>(Type<T> type) {
    if constexpr (!std::is_same_v<T, float>) factors == DType::f32 ? g(type, Type<float>()) : g(type, type);
  });
}

template <class T, class F>
LowOperands<T, F> operands(const DeviceMatrix& x, const DeviceMatrix& f) {
  return {static_cast<const T*>(x.data), static_cast<const F*>(f.data), x.ld, f.ld, int(x.cols), !f.transposed};
}

// Tiles of ranks: a power of two, so that the warps can be divided among them.
int tile_shift(int64_t rank) { return rank <= kRanks ? 0 : rank <= 2 * kRanks ? 1 : 2; }
static_assert(kMostRanks == kRanks << 2);

// A little below what is there, so that clusters fit however the multiprocessors are grouped.
int blocks_at_once(const CudaBackend& cuda) { return cuda.multiprocessors() * 31 / 32; }

int row_tiles(int64_t rows) { return int((rows + kRows - 1) / kRows); }

constexpr int kSmallestClusterShift = 1;

// How many blocks share a reduction: all run at once, and about half of the warps have a step to do.
int cluster_shift(const CudaBackend& cuda, int units, int64_t depth, int tile_shift) {
  const auto too_large = [&](int shift) {
    return units << shift > blocks_at_once(cuda) || depth < int64_t((kWarps >> tile_shift) / 2 * kStep) << shift;
  };
  int shift = kClusterShift;
  while (shift > kSmallestClusterShift && too_large(shift)) --shift;
  return shift;
}

}  // namespace

bool few_rows_fit(const CudaBackend& cuda, const AdapterProduct& p, int64_t rank) {
  return cuda.capability() == 90 && p.x.rows <= kRows && rank <= kMostRanks && !p.y.transposed && p.y.ld % 8 == 0 &&
         p.y.cols % 8 == 0 && reinterpret_cast<uintptr_t>(p.y.data) % 16 == 0 && p.x.cols < INT_MAX &&
         p.y.cols < INT_MAX;
}

bool few_rows_fit(const CudaBackend& cuda, int64_t rows, int64_t rank) {
  return cuda.capability() == 90 && rank <= kMostRanks &&
         2 * row_tiles(rows) << kSmallestClusterShift <= blocks_at_once(cuda);
}

void few_rows_product(CudaBackend& cuda, const AdapterProduct& p) {
  with_types(p.x.dtype, p.down.dtype, [&]<class T, class F>(Type<T>, Type<F>) {
    const ProductArguments<T, F> arguments{operands<T, F>(p.x, p.down.t()),
                                           static_cast<T*>(p.y.data),
                                           static_cast<const F*>(p.up.data),
                                           static_cast<T*>(p.saved.data),
                                           p.y.ld,
                                           p.up.ld,
                                           p.saved.ld,
                                           int(p.x.rows),
                                           int(p.y.cols),
                                           int(p.down.rows),
                                           tile_shift(p.down.rows),
                                           p.scale};
    // Half of a block's warps get columns; more clusters would only compute s more often.
    const int64_t columns = kCluster * kWarps / 2 * kGroup;
    const int64_t clusters = std::min((p.y.cols + columns - 1) / columns, int64_t(blocks_at_once(cuda) / kCluster));
    launch("adapter", cuda.stream(),
           {dim3(unsigned(clusters * kCluster)), dim3(kThreads), sizeof(ProductShared<T>), kCluster, true},
           product_kernel<T, F>, arguments);
  });
}

void few_rows_gradients(CudaBackend& cuda, const AdapterGradients& g) {
  with_types(g.x.dtype, g.down.dtype, [&]<class T, class F>(Type<T>, Type<F>) {
    GradientArguments<T, F> p{};
    p.rows = int(g.dy.rows);
    p.row_tiles = row_tiles(p.rows);
    p.padded_rows = p.row_tiles * kRows;
    p.rank = int(g.down.rows);
    p.tile_shift = tile_shift(p.rank);
    const Scratch low(cuda, size_t(2 * kRanks << p.tile_shift) * size_t(p.padded_rows) * sizeof(T));
    p.low_t = low.as<T>();
    const auto add = [&](const LowOperands<T, F>& from, float low_scale, const DeviceMatrix& x, const DeviceMatrix& out,
                         float scale) {
      p.low[p.count] = from;
      p.low_scale[p.count] = low_scale;
      p.task[p.count++] = {static_cast<const T*>(x.data),
                           static_cast<float*>(out.data),
                           x.ld,
                           out.transposed ? 1 : out.ld,
                           out.transposed ? out.ld : 1,
                           int(x.cols),
                           int((x.cols + kColumns - 1) / kColumns),
                           scale};
    };
    if (g.dup.data) add(operands<T, F>(g.x, g.down.t()), 1, g.dy, g.dup, g.scale);
    if (g.ddown.data) add(operands<T, F>(g.dy, g.up), g.scale, g.x, g.ddown.t(), 1);
    const int units = p.count * p.row_tiles;
    p.cluster_shift = cluster_shift(cuda, units, std::max(g.x.cols, g.dy.cols), p.tile_shift);
    const int cluster = 1 << p.cluster_shift, most = blocks_at_once(cuda) / cluster * cluster;
    const int wanted = std::max(units * cluster, p.task[0].tiles + p.task[1].tiles);
    launch("adapter gradients", cuda.stream(),
           {dim3(unsigned(std::min(most, (wanted + cluster - 1) / cluster * cluster))), dim3(kThreads),
            sizeof(GradientShared), cluster, true},
           gradients_kernel<T, F>, p);
  });
}

}  // namespace wick
