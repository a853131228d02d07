// Group normalisation, forward and backward.
//
// An image [B, ..., C] is positions x channels and no group is ever gathered: all sums are taken per channel along the
// rows as they lie in memory (norm/tiles.cuh), and channels are joined into groups afterwards. There are two phases
// each: sums of chunks, then the use of their totals. As much of an image as fits the SMs' shared memory, if at least
// half, is read once, in one launch whose blocks wait for each other between the phases. Else each phase is a launch;
// the second starts while the first still runs. The second phase goes backwards through data it reads again: the first
// left the end of it in the L2 cache.
#include <cooperative_groups.h>

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/functions.cuh"
#include "wick/backend/cuda/device/mma.cuh"
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/norm/tiles.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

// The packs that a thread works on, in turn: the first, and the elements from one to the next.
template <class T>
struct Strand {
  T* at;
  int64_t step;
};
template <class T>
__device__ __forceinline__ Strand<T> from_begin(const RowsOf<T>& x, const Tiling& t, const TilePlace& at) {
  return {x[at.first + at.row] + at.channel, t.rows * x.stride};
}
template <class T>
__device__ __forceinline__ Strand<T> from_end(const RowsOf<T>& x, const Tiling& t, const TilePlace& at) {
  return {x[at.first + at.row + (at.turns - 1) * t.rows] + at.channel, -t.rows * x.stride};
}

// Fewer blocks do with fewer sums; copies that need no registers keep the memory busy all the same.
constexpr int kHeldBlocks = 1;

// Calls f with 0 to kCount - 1 as constants.
template <int kCount, class F>
__device__ __forceinline__ void unroll(const F& f) {
  [&]<int... kNumbers>(std::integer_sequence<int, kNumbers...>) { (f(std::integral_constant<int, kNumbers>()), ...); }
  (std::make_integer_sequence<int, kCount>());
}

// Calls f(batches, first, a constant count) with packs of the thread, one batch of each input.
template <int kBatch, int N, class T, int kInputs, class F>
__device__ __forceinline__ void for_packs(Strand<const T> (&from)[kInputs], int turns, const F& f) {
  PackBatch<T, N, kBatch> batches[kInputs];
  for (int left = turns; left > 0; left -= kBatch) {
#pragma unroll
    for (int c = 0; c < kInputs; ++c) {
      batches[c].load(from[c].at, from[c].step, left);
      from[c].at += kBatch * from[c].step;
    }
    for_present<kBatch>(left, [&](int u, auto count) { f(batches, u, count); });
  }
}

// The same with packs that are kept in shared memory, many of them on their way at once.
template <int N, class T, int kInputs, class F>
__device__ __forceinline__ void for_packs_kept(Strand<const T> (&from)[kInputs], const Strand<T> (&kept)[kInputs],
                                               int turns, const F& f) {
  constexpr int kBatch = 2, kFlight = 5;
  Strand<T> keep[kInputs];
#pragma unroll
  for (int c = 0; c < kInputs; ++c) keep[c] = kept[c];
  for (int left = turns; left > 0; left -= kFlight * kBatch) {
#pragma unroll
    for (int b = 0; b < kFlight; ++b) {
#pragma unroll
      for (int u = b * kBatch; u < (b + 1) * kBatch; ++u)
#pragma unroll
        for (int c = 0; c < kInputs; ++c)
          if (u < left) copy_async(keep[c].at + u * keep[c].step, from[c].at + u * from[c].step, true);
      copy_async_commit();
    }
    unroll<kFlight>([&](auto number) {
      constexpr int kBefore = decltype(number)::value * kBatch;
      copy_async_wait<kFlight - 1 - decltype(number)::value>();
      PackBatch<T, N, kBatch> batches[kInputs];
#pragma unroll
      for (int c = 0; c < kInputs; ++c)
        batches[c].load(keep[c].at + kBefore * keep[c].step, keep[c].step, left - kBefore);
      for_present<kBatch>(left - kBefore, [&](int u, auto count) { f(batches, u, count); });
    });
#pragma unroll
    for (int c = 0; c < kInputs; ++c) {
      from[c].at += min(left, kFlight * kBatch) * from[c].step;
      keep[c].at += kFlight * kBatch * keep[c].step;
    }
  }
}

// A group's channels may lie in several tiles; each tile and chunk leaves one pair of sums for it.
struct GroupTiling : Tiling {
  int groups, width;
  int64_t slots;            // at most, a group
  double inverse_elements;  // of a group
  Divisor by_width, by_tile_channels;
  int kept = 0;  // turns of each thread whose packs stay in shared memory

  GroupTiling(const CudaBackend& cuda, const View& x, int group_count, int pack, int blocks = kTileBlocks)
      : Tiling(cuda, x.dim(0), x.numel() / (x.dim(0) * x.dim(-1)), x.dim(-1), pack, blocks),
        groups(group_count),
        width(channels / group_count),
        inverse_elements(1 / (double(positions) * width)),
        by_width(width),
        by_tile_channels(tile_channels) {
    const int pieces = tile_channels % width == 0 ? 1 : (width + tile_channels - 2) / tile_channels + 1;
    slots = pieces * chunks;
  }
  size_t sum_bytes() const { return size_t(images * groups * slots) * sizeof(double2); }

  __device__ __forceinline__ int group(int channel) const { return int(by_width.divide(unsigned(channel))); }
  __device__ __forceinline__ int tile_of(int channel) const { return int(by_tile_channels.divide(unsigned(channel))); }
  __device__ __forceinline__ int first_tile(int group) const { return tile_of(group * width); }
  __device__ __forceinline__ int last_tile(int group) const { return tile_of((group + 1) * width - 1); }
};

// Calls f(group) for the groups of a tile, each on a warp of its own.
template <class F>
__device__ __forceinline__ void for_groups(const GroupTiling& t, const TilePlace& at, const F& f) {
#pragma unroll 1
  for (int group = t.group(at.begin) + int(threadIdx.x / 32); group * t.width < at.end; group += int(blockDim.x / 32))
    f(group);
}

// A block's own packs of one input, in dynamic shared memory. Each thread reads only packs that it wrote.
template <class T, int N>
__device__ __forceinline__ Strand<T> kept_packs(const GroupTiling& t, int input) {
  extern __shared__ __align__(16) char held[];
  T* const packs = reinterpret_cast<T*>(held) + int64_t(input) * t.kept * blockDim.x * N;
  return {packs + threadIdx.x * N, int64_t(blockDim.x) * N};
}

// Adds up sums(channel of the tile) over the channels of each group.
template <class F>
__device__ __forceinline__ void store_group_sums(double2* partial, const GroupTiling& t, const TilePlace& at,
                                                 const F& sums) {
  const int lane = int(threadIdx.x % 32);
  for_groups(t, at, [&](int group) {
    const int begin = max(group * t.width, at.begin), end = min((group + 1) * t.width, at.end);
    double2 total{0, 0};
#pragma unroll 1
    for (int channel = begin + lane; channel < end; channel += 32) {
      const double2 sum = sums(channel - at.begin);
      total.x += sum.x;
      total.y += sum.y;
    }
    total = {warp_sum(total.x), warp_sum(total.y)};
    const int64_t slot = (at.tile - t.first_tile(group)) * t.chunks + at.chunk;
    if (lane == 0) partial[(at.image * t.groups + group) * t.slots + slot] = total;
  });
}

// The sums of a group over the whole image. All lanes of a warp call it and get them.
__device__ __forceinline__ double2 group_total(const double2* partial, const GroupTiling& t, int64_t image, int group) {
  const int count = (t.last_tile(group) - t.first_tile(group) + 1) * int(t.chunks);
  const double2* sums = partial + (image * t.groups + group) * t.slots;
  constexpr int kFew = 5;  // on their way at once
  double2 total{0, 0};
  for (int first = int(threadIdx.x % 32); first < count; first += kFew * 32) {
    double2 few[kFew] = {};
#pragma unroll
    for (int u = 0; u < kFew; ++u)
      if (first + u * 32 < count) few[u] = sums[first + u * 32];
#pragma unroll
    for (int u = 0; u < kFew; ++u) total = {total.x + few[u].x, total.y + few[u].y};
  }
  return {warp_sum(total.x), warp_sum(total.y)};
}

// A kernel's data on each channel of its tile, laid out so that lanes of neighbouring columns find theirs side by side.
// Each of the first threads fills the entry of one channel.
template <int N>
struct ChannelTable {
  float4 values[N * kTileColumns];

  // The thread's channel, or -1 if it has none.
  static __device__ __forceinline__ int own_channel(const GroupTiling& t, const TilePlace& at) {
    const int channel = at.begin + at.column * N + at.row;
    return at.row < N && channel < at.end ? channel : -1;
  }
};

// Calls f(j, numbers) for each channel of a pack, with a copy of its data, which is read once.
template <int N, class F>
__device__ __forceinline__ void for_channels(const ChannelTable<N>& table, const GroupTiling& t, const TilePlace& at,
                                             const F& f) {
#pragma unroll
  for (int j = 0; j < N; ++j) f(j, float4(table.values[j * t.columns + at.column]));
}

// For a number that was rounded itself: exp2 of a product loses no more digits than that rounding did.
__device__ __forceinline__ float quick_sigmoid(float x) {
  float e, s;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.442695041f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1 + e));
  return s;
}

// The value from which sums of a group's values are distances: any of them would do.
template <class T>
__device__ __forceinline__ double group_pivot(const RowsOf<const T>& x, const GroupTiling& t, int64_t image,
                                              int group) {
  return double(to_float(x[image * t.positions][group * t.width]));
}

template <int N>
struct StatisticsShared {
  TileSums<N> sums;
  double moved[N * kTileColumns];  // from the group's pivot to the chunk's, by channel of the tile
};

// Sums of distances and of their squares. In f32 they are taken from the chunk's first position, in double precision
// from the group's pivot, so that no digits are lost when the mean is large against the deviation. (By a pivot k
// deviations away a chunk of n positions can lose k^2 n eps, but then its group has more than k^2 elements.)
template <bool kKeeps, class T, int N>
__device__ __forceinline__ void sum_distances(double2* partial, const RowsOf<const T>& x, const GroupTiling& t,
                                              const TilePlace& at, StatisticsShared<N>& shared) {
  constexpr int kBatch = 4;
  const int own = at.begin + int(threadIdx.x);
  const T own_pivot = x[at.first][min(own, at.end - 1)];
  const double own_group_pivot = group_pivot(x, t, at.image, t.group(min(own, at.end - 1)));
  float first[N] = {}, second[N] = {};
  if (at.turns > 0) {
    const auto pivot = PackWords<T, N>::load(x[at.first] + at.channel);
    Strand<const T> from[] = {from_begin(x, t, at)};
    const auto sum = [&](auto& batches, int u, auto count) {
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int v = u; v < u + count.value; ++v) {
          const float distance = element(batches[0][v], j) - element(pivot.pack(), j);
          first[j] += distance;
          second[j] = fmaf(distance, distance, second[j]);
        }
    };
    const int kept = kKeeps ? min(at.turns, t.kept) : 0;
    if (kKeeps) for_packs_kept<N>(from, {kept_packs<T, N>(t, 0)}, kept, sum);
    for_packs<kBatch, N>(from, at.turns - kept, sum);
  }
  if (own < at.end) shared.moved[threadIdx.x] = double(to_float(own_pivot)) - own_group_pivot;
  shared.sums.add_up(t, at, first, second);
  store_group_sums(partial, t, at, [&](int channel) {
    const double n = double(at.count), shift = shared.moved[channel];
    const double distance = double(shared.sums.totals[0][channel]), square = double(shared.sums.totals[1][channel]);
    return double2{n * shift + distance, square + shift * (2 * distance + n * shift)};
  });
}

template <int N>
struct NormaliseShared {
  float3 statistics[N * kTileColumns];  // by group of the tile: mean, remainder of its rounding, rstd
  ChannelTable<N> table;
};

// Inputs and outputs of a forward pass, but for y.
template <class T>
struct GroupNormCall {
  float *mean, *rstd;
  double2* partial;
  RowsOf<const T> x;
  const float *w, *b;
  float eps;
};

// y = act((x - mean) * scale + shift), per channel; first where x is not kept, backwards. wait() returns when the sums
// of all chunks are there.
template <bool kSilu, bool kKeeps, int N, class T, class Wait>
__device__ __forceinline__ void normalise(const RowsOf<T>& y, const GroupNormCall<T>& call, const GroupTiling& t,
                                          const TilePlace& at, NormaliseShared<N>& shared, const Wait& wait) {
  constexpr int kBatch = 4;
  const int first_group = t.group(at.begin), kept = kKeeps ? min(at.turns, t.kept) : 0;
  Strand<const T> from = from_end(call.x, t, at);
  PackBatch<T, N, kBatch> batch;
  batch.load(from.at, from.step, at.turns - kept);
  const int own = ChannelTable<N>::own_channel(t, at);
  const float own_w = own >= 0 && call.w ? call.w[own] : 1, own_b = own >= 0 && call.b ? call.b[own] : 0;

  wait();
  for_groups(t, at, [&](int group) {
    const double pivot = group_pivot(call.x, t, at.image, group);
    const double2 sum = group_total(call.partial, t, at.image, group);
    const double distance = sum.x * t.inverse_elements, m = pivot + distance;
    const double variance = fmax(0.0, sum.y * t.inverse_elements - distance * distance);
    const float high = float(m), r = 1 / sqrtf(float(variance) + call.eps);
    if (threadIdx.x % 32 > 0) return;
    shared.statistics[group - first_group] = {high, float(m - double(high)), r};
    if (at.chunk > 0 || at.tile != t.first_tile(group)) return;
    if (call.mean) call.mean[at.image * t.groups + group] = high;
    if (call.rstd) call.rstd[at.image * t.groups + group] = r;
  });
  __syncthreads();
  if (own >= 0) {
    const float3 s = shared.statistics[t.group(own) - first_group];
    const float scale = s.z * own_w;
    shared.table.values[threadIdx.x] = {s.x, scale, fmaf(-s.y, scale, own_b), 0};
  }
  __syncthreads();

  const auto pass = [&](Strand<T> to, int turns) {
    for (int left = turns; left > 0; left -= kBatch) {
      for_present<kBatch>(left, [&](int u, auto count) {
        for_channels(shared.table, t, at, [&](int j, const float4& c) {
#pragma unroll
          for (int v = u; v < u + count.value; ++v) {
            const float z = fmaf(element(batch[v], j) - c.x, c.y, c.z);
            batch[v].value[j] = from_float<T>(kSilu ? z * quick_sigmoid(z) : z);
          }
        });
      });
      batch.store(to.at, to.step, left);
      batch.load(from.at += kBatch * from.step, from.step, left - kBatch);
      to.at += kBatch * to.step;
    }
  };
  pass(from_end(y, t, at), at.turns - kept);
  if (!kKeeps) return;
  const Strand<T> here = kept_packs<T, N>(t, 0);
  from = {here.at, here.step};
  batch.load(from.at, from.step, kept);
  pass(from_begin(y, t, at), kept);
}

template <class T, int N>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    group_statistics(const GroupNormCall<T> call, const GroupTiling t) {
  __shared__ StatisticsShared<N> shared;
  const TilePlace at(t, N);
  if (N > 1) prefetch_tile(call.x, at);
  wait_for_previous();
  launch_dependents();  // now: the kernel that follows takes x for written
  sum_distances<false>(call.partial, call.x, t, at, shared);
}

template <class T, int N, bool kSilu>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    group_normalise(const RowsOf<T> y, const GroupNormCall<T> call, const GroupTiling t) {
  __shared__ NormaliseShared<N> shared;
  const TilePlace at(t, N);
  launch_dependents();
  normalise<kSilu, false>(y, call, t, at, shared, [] { wait_for_previous(); });
}

// Both phases, for an image of which t.kept turns are held in between.
template <class T, int N, bool kSilu>
__global__ void __launch_bounds__(kTileThreads, kHeldBlocks)
    group_norm_held(const RowsOf<T> y, const GroupNormCall<T> call, const GroupTiling t) {
  __shared__ union {
    StatisticsShared<N> first;
    NormaliseShared<N> second;
  } shared;
  const TilePlace at(t, N);
  prefetch_tile(call.x, at, kTileThreads);
  wait_for_previous();
  launch_dependents();
  sum_distances<true>(call.partial, call.x, t, at, shared.first);
  normalise<kSilu, true>(y, call, t, at, shared.second, [] { cooperative_groups::this_grid().sync(); });
}

// For one channel: mean, scale = rstd * w and shift give z = (x - mean) * scale + shift.
template <bool kSilu>
__device__ __forceinline__ float gradient_before_activation(float dy, float distance, const float4& c) {
  if (!kSilu) return dy;
  const float z = fmaf(distance, c.y, c.z);
  return dy * gated_slope(z, quick_sigmoid(z), 1);
}

template <int N>
struct GradientSumsShared {
  TileSums<N> sums;
  ChannelTable<N> table;
};

// Inputs and outputs of a backward pass, but for dx. channel_sums may be null.
template <class T>
struct GroupGradientCall {
  double2* partial;
  ChannelSums* channel_sums;
  RowsOf<const T> dy, x;
  const float *mean, *rstd, *w, *b;

  // Mean, scale, shift, and room for one more.
  __device__ __forceinline__ float4 channel(const GroupTiling& t, int64_t image, int channel) const {
    const int64_t group = image * t.groups + t.group(channel);
    return {mean[group], rstd[group] * (w ? w[channel] : 1), b ? b[channel] : 0, 0};
  }
};

// Sums of dz * w and dz * w * x_hat, where dz is the gradient before the activation; for dw and db also those of each
// channel, without w.
template <bool kSilu, bool kKeeps, int N, class T>
__device__ __forceinline__ void sum_gradients(const GroupGradientCall<T>& call, const GroupTiling& t,
                                              const TilePlace& at, GradientSumsShared<N>& shared) {
  constexpr int kBatch = 2;
  const int own = ChannelTable<N>::own_channel(t, at);
  if (own >= 0) shared.table.values[threadIdx.x] = call.channel(t, at.image, own);
  __syncthreads();
  float first[N] = {}, second[N] = {};
  Strand<const T> from[] = {from_begin(call.dy, t, at), from_begin(call.x, t, at)};
  const auto sum = [&](auto& batches, int u, auto count) {
    for_channels(shared.table, t, at, [&](int j, const float4& c) {
#pragma unroll
      for (int v = u; v < u + count.value; ++v) {
        const float distance = element(batches[1][v], j) - c.x;
        const float dz = gradient_before_activation<kSilu>(element(batches[0][v], j), distance, c);
        first[j] += dz;
        second[j] = fmaf(dz, distance, second[j]);
      }
    });
  };
  const int kept = kKeeps ? min(at.turns, t.kept) : 0;
  if (kKeeps) for_packs_kept<N>(from, {kept_packs<T, N>(t, 0), kept_packs<T, N>(t, 1)}, kept, sum);
  for_packs<kBatch, N>(from, at.turns - kept, sum);
  const TileSums<N>& sums = shared.sums;
  shared.sums.add_up(t, at, first, second);
  const auto rstd = [&](int channel) { return call.rstd[at.image * t.groups + t.group(at.begin + channel)]; };
  store_group_sums(call.partial, t, at, [&](int channel) {
    const double w = call.w ? double(call.w[at.begin + channel]) : 1;
    return double2{w * double(sums.totals[0][channel]), w * double(rstd(channel)) * double(sums.totals[1][channel])};
  });
  if (!call.channel_sums) return;
  for (int channel = int(threadIdx.x); channel < at.end - at.begin; channel += int(blockDim.x))
    call.channel_sums[(at.image * t.chunks + at.chunk) * t.channels + at.begin + channel] = {
        sums.totals[0][channel], rstd(channel) * sums.totals[1][channel]};
}

template <int N>
struct InputGradientShared {
  float2 slopes[N * kTileColumns];  // by group of the tile: slope, offset
  float offsets[N * kTileColumns];  // by channel, as in the table
  ChannelTable<N> table;
};

// dx = rstd * (dz * w - mean(dz * w) - x_hat * mean(dz * w * x_hat)) = dz * scale - (x - mean) * slope - offset.
// In the order of normalise(). wait() returns when the sums of all chunks are there.
template <bool kSilu, bool kKeeps, int N, class T, class Wait>
__device__ __forceinline__ void input_gradient(const RowsOf<T>& dx, const GroupGradientCall<T>& call,
                                               const GroupTiling& t, const TilePlace& at,
                                               InputGradientShared<N>& shared, const Wait& wait) {
  constexpr int kBatch = 2;
  const int first_group = t.group(at.begin), kept = kKeeps ? min(at.turns, t.kept) : 0;
  Strand<const T> dy = from_end(call.dy, t, at), x = from_end(call.x, t, at);
  PackBatch<T, N, kBatch> xs, dys;
  xs.load(x.at, x.step, at.turns - kept);
  dys.load(dy.at, dy.step, at.turns - kept);
  const int own = ChannelTable<N>::own_channel(t, at);
  const float4 own_entry = own >= 0 ? call.channel(t, at.image, own) : float4{};

  wait();
  for_groups(t, at, [&](int group) {
    const double2 sum = group_total(call.partial, t, at.image, group);
    const float r = call.rstd[at.image * t.groups + group];
    const float mean_dz = float(sum.x * t.inverse_elements), mean_dz_x = float(sum.y * t.inverse_elements);
    if (threadIdx.x % 32 == 0) shared.slopes[group - first_group] = {r * r * mean_dz_x, r * mean_dz};
  });
  __syncthreads();
  if (own >= 0) {
    const float2 slope = shared.slopes[t.group(own) - first_group];
    shared.table.values[threadIdx.x] = {own_entry.x, own_entry.y, own_entry.z, slope.x};
    shared.offsets[threadIdx.x] = slope.y;
  }
  __syncthreads();

  const auto pass = [&](Strand<T> to, int turns) {
    for (int left = turns; left > 0; left -= kBatch) {
      for_present<kBatch>(left, [&](int u, auto count) {
        for_channels(shared.table, t, at, [&](int j, const float4& c) {
          const float offset = shared.offsets[j * t.columns + at.column];
#pragma unroll
          for (int v = u; v < u + count.value; ++v) {
            const float distance = element(xs[v], j) - c.x;
            const float dz = gradient_before_activation<kSilu>(element(dys[v], j), distance, c);
            dys[v].value[j] = from_float<T>(fmaf(dz, c.y, -fmaf(distance, c.w, offset)));
          }
        });
      });
      dys.store(to.at, to.step, left);
      xs.load(x.at += kBatch * x.step, x.step, left - kBatch);
      dys.load(dy.at += kBatch * dy.step, dy.step, left - kBatch);
      to.at += kBatch * to.step;
    }
  };
  pass(from_end(dx, t, at), at.turns - kept);
  if (!kKeeps) return;
  const Strand<T> here[] = {kept_packs<T, N>(t, 0), kept_packs<T, N>(t, 1)};
  dy = {here[0].at, here[0].step};
  x = {here[1].at, here[1].step};
  xs.load(x.at, x.step, kept);
  dys.load(dy.at, dy.step, kept);
  pass(from_begin(dx, t, at), kept);
}

template <class T, int N, bool kSilu>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    group_gradient_sums(const GroupGradientCall<T> call, const GroupTiling t) {
  __shared__ GradientSumsShared<N> shared;
  const TilePlace at(t, N);
  if (N > 1) prefetch_tile(call.dy, at), prefetch_tile(call.x, at);
  wait_for_previous();
  launch_dependents();  // now: the kernel that follows takes x and dy for written
  sum_gradients<kSilu, false>(call, t, at, shared);
}

template <class T, int N, bool kSilu>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    group_input_gradient(const RowsOf<T> dx, const GroupGradientCall<T> call, const GroupTiling t) {
  __shared__ InputGradientShared<N> shared;
  const TilePlace at(t, N);
  input_gradient<kSilu, false>(dx, call, t, at, shared, [] {
    wait_for_previous();
    launch_dependents();  // now: finish_affine takes the sums for written
  });
}

template <class T, int N, bool kSilu>
__global__ void __launch_bounds__(kTileThreads, kHeldBlocks)
    group_gradient_held(const RowsOf<T> dx, const GroupGradientCall<T> call, const GroupTiling t) {
  __shared__ union {
    GradientSumsShared<N> first;
    InputGradientShared<N> second;
  } shared;
  const TilePlace at(t, N);
  prefetch_tile(call.dy, at, kTileThreads);
  prefetch_tile(call.x, at, kTileThreads);
  wait_for_previous();
  sum_gradients<kSilu, true>(call, t, at, shared.first);
  input_gradient<kSilu, true>(dx, call, t, at, shared.second, [] {
    cooperative_groups::this_grid().sync();
    launch_dependents();  // now: finish_affine takes the sums for written
  });
}

// Only whole packs are held.
template <class T>
constexpr int kHeldPack = Pack<T>::kSize;

// The least bytes per block worth holding: the L2 cache holds all of a smaller image, and no block has to wait for all.
constexpr size_t kWorthHolding = 64 << 10;

// Whether the blocks are to hold as much as they can of `inputs` inputs of packs of `pack` elements, and the tiling of
// the image in either case.
struct HeldPlan {
  GroupTiling tiling;
  Launch launch;
  bool holds;

  template <class Kernel>
  HeldPlan(const CudaBackend& cuda, const View& x, int groups, Kernel kernel, int pack, int element_bytes, int inputs)
      : tiling(cuda, x, groups, pack, kHeldBlocks) {
    int device = 0, most = 0;  // of shared memory, which the kernel has its own part of
    cudaFuncAttributes own{};
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "cudaDeviceGetAttribute");
    cuda_check(cudaFuncGetAttributes(&own, kernel), "cudaFuncGetAttributes");
    const size_t turn_bytes = size_t(tiling.threads()) * size_t(pack * element_bytes * inputs);
    tiling.kept = std::min(tiling.most_turns(), int((size_t(most) - own.sharedSizeBytes) / turn_bytes));
    launch = {.grid = tiling.blocks(),
              .block = tiling.threads(),
              .shared_bytes = size_t(tiling.kept) * turn_bytes,
              .overlap = cuda.capability() >= 90,
              .cooperative = true};
    holds = pack > 1 && cuda.capability() >= 80 && 2 * tiling.kept >= tiling.most_turns() &&
            launch.shared_bytes >= kWorthHolding && all_at_once(cuda, kernel, launch);
    if (!holds) tiling = GroupTiling(cuda, x, groups, pack);
  }
};

template <class F>
void dispatch_silu(bool silu, F&& f) {
  silu ? f(std::true_type()) : f(std::false_type());
}

}  // namespace

void CudaBackend::group_norm(const GroupNormArgs& a) {
  if (a.x.numel() == 0) return;
  const DType dtype = common_dtype({a.x, a.y});
  const RowInput input(*this, a.x, dtype);
  const RowOutput output(*this, a.y, dtype);
  const DenseInput weight(*this, a.w, DType::f32), bias(*this, a.b, DType::f32);
  const DenseOutput means(*this, a.mean, DType::f32), rstds(*this, a.rstd, DType::f32);
  dispatch_packs(dtype, input.packs() && output.packs(), [&](auto type, auto pack) {
    using T = typename decltype(type)::type;
    constexpr int N = decltype(pack)::value;
    dispatch_silu(a.silu, [&](auto activated) {
      const auto whole = group_norm_held<T, kHeldPack<T>, activated.value>;
      const HeldPlan plan(*this, a.x, a.groups, whole, N, int(sizeof(T)), 1);
      const GroupTiling& t = plan.tiling;
      const Scratch partial(*this, t.sum_bytes());
      const GroupNormCall<T> call{means.as<float>(),
                                  rstds.as<float>(),
                                  partial.as<double2>(),
                                  input.rows<const T>(),
                                  weight.as<float>(),
                                  bias.as<float>(),
                                  a.eps};
      if (plan.holds) return launch("group_norm", stream_, plan.launch, whole, output.rows<T>(), call, t);
      const Launch phase = overlapped(*this, t.blocks(), t.threads());
      launch("group_statistics", stream_, phase, group_statistics<T, N>, call, t);
      launch("group_normalise", stream_, phase, group_normalise<T, N, activated.value>, output.rows<T>(), call, t);
    });
  });
  output.finish();
  means.finish();
  rstds.finish();
}

void CudaBackend::group_norm_backward(const GroupNormArgs& a, const NormGradients& g) {
  if (a.x.numel() == 0) {
    for (const View& v : {g.dw, g.db})
      if (v) fill(v, 0);
    return;
  }
  const DType dtype = common_dtype({a.x, g.dy, g.dx});
  const RowInput input(*this, a.x, dtype), gradient(*this, g.dy, dtype);
  const RowOutput output(*this, g.dx, dtype);
  const DenseInput weight(*this, a.w, DType::f32), bias(*this, a.b, DType::f32);
  const DenseInput means(*this, a.mean, DType::f32), rstds(*this, a.rstd, DType::f32);
  const DenseOutput dweight(*this, g.dw, DType::f32), dbias(*this, g.db, DType::f32);
  dispatch_packs(dtype, input.packs() && gradient.packs() && output.packs(), [&](auto type, auto pack) {
    using T = typename decltype(type)::type;
    constexpr int N = decltype(pack)::value;
    dispatch_silu(a.silu, [&](auto activated) {
      const auto whole = group_gradient_held<T, kHeldPack<T>, activated.value>;
      const HeldPlan plan(*this, a.x, a.groups, whole, N, int(sizeof(T)), 2);
      const GroupTiling& t = plan.tiling;
      const Scratch partial(*this, t.sum_bytes());
      const Scratch channel_sums(*this,
                                 g.dw || g.db ? size_t(t.images * t.chunks * t.channels) * sizeof(ChannelSums) : 0);
      ChannelSums* const sums = g.dw || g.db ? channel_sums.as<ChannelSums>() : nullptr;
      const GroupGradientCall<T> call{partial.as<double2>(),    sums,
                                      gradient.rows<const T>(), input.rows<const T>(),
                                      means.as<float>(),        rstds.as<float>(),
                                      weight.as<float>(),       bias.as<float>()};
      if (g.dx && plan.holds) {
        launch("group_norm_backward", stream_, plan.launch, whole, output.rows<T>(), call, t);
      } else {
        const Launch phase = overlapped(*this, t.blocks(), t.threads());
        launch("group_gradient_sums", stream_, phase, group_gradient_sums<T, N, activated.value>, call, t);
        if (g.dx)
          launch("group_input_gradient", stream_, phase, group_input_gradient<T, N, activated.value>, output.rows<T>(),
                 call, t);
      }
      if (sums)
        finish_gradients<float>(*this, {dweight.as<float>(), dbias.as<float>(), {}, {}}, sums, {}, t, bool(g.dx));
    });
  });
  output.finish();
  dweight.finish();
  dbias.finish();
}

}  // namespace wick
