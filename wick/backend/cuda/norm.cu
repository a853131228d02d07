// Group normalisation, forward and backward.
//
// An image [B, ..., C] is positions x channels and no group is ever gathered: all sums are taken per channel along the
// rows as they lie in memory (device/tiles.cuh), and channels are joined into groups afterwards. Two launches each:
// sums of chunks, then what is done with their totals. The second goes through the image from its end, where the first
// left it in the L2 cache, and starts while the first still runs.
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/functions.cuh"
#include "wick/backend/cuda/device/tiles.cuh"
#include "wick/backend/cuda/device/total.cuh"

namespace wick {
namespace {

// A group's channels may lie in several tiles; each tile and chunk leaves one pair of sums for it.
struct GroupTiling : Tiling {
  int groups, width;
  int64_t slots;            // at most, a group
  double inverse_elements;  // of a group
  Divisor by_width, by_tile_channels;

  GroupTiling(const CudaBackend& cuda, const View& x, int group_count, int pack)
      : Tiling(cuda, x.dim(0), x.numel() / (x.dim(0) * x.dim(-1)), x.dim(-1), pack),
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
  constexpr int kFew = 2;  // on their way at once
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

// What a kernel knows of each channel of its tile, so that lanes of neighbouring columns find theirs side by side. Each
// of the first threads fills the entry of one channel.
template <int N>
struct ChannelTable {
  float4 values[N * kTileColumns];

  // The thread's channel, or -1 if it has none.
  static __device__ __forceinline__ int own_channel(const GroupTiling& t, const TilePlace& at) {
    const int channel = at.begin + at.column * N + at.row;
    return at.row < N && channel < at.end ? channel : -1;
  }
  __device__ __forceinline__ float4 of(const GroupTiling& t, const TilePlace& at, int j) const {
    return values[j * t.columns + at.column];
  }
};

// Calls f(j, numbers) for each channel of a pack, with what is known of it.
template <int N, class F>
__device__ __forceinline__ void for_channels(const ChannelTable<N>& table, const GroupTiling& t, const TilePlace& at,
                                             const F& f) {
#pragma unroll
  for (int j = 0; j < N; ++j) f(j, table.of(t, at, j));
}

// For a number that was rounded itself: exp2 of a product loses no more digits than that rounding did.
__device__ __forceinline__ float quick_sigmoid(float x) {
  float e, s;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.442695041f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1 + e));
  return s;
}

// What sums of a group's values are distances from: any of them would do.
template <class T>
__device__ __forceinline__ double group_pivot(const RowsOf<const T>& x, const GroupTiling& t, int64_t image,
                                              int group) {
  return double(to_float(x[image * t.positions][group * t.width]));
}

// Sums of distances and of their squares. In f32 they are taken from the chunk's first position, in double precision
// from the group's pivot, so that no digits are lost when the mean is large against the deviation. (By a pivot k
// deviations away a chunk of n positions can lose k^2 n eps, but then its group has more than k^2 elements.)
template <class T, int N>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    group_statistics(double2* partial, const RowsOf<const T> x, const GroupTiling t) {
  constexpr int kBatch = 4;
  __shared__ TileSums<N> sums;
  __shared__ double moved[N * kTileColumns];  // from the group's pivot to the chunk's, by channel of the tile
  launch_dependents();
  const TilePlace at(t, N);
  const int own = at.begin + int(threadIdx.x);
  const T own_pivot = x[at.first][min(own, at.end - 1)];
  const double own_group_pivot = group_pivot(x, t, at.image, t.group(min(own, at.end - 1)));
  float first[N] = {}, second[N] = {};
  if (at.turns > 0) {
    const auto pivot = PackWords<T, N>::load(x[at.first] + at.channel);
    const int64_t step = t.rows * x.stride;
    const T* from = x[at.first + at.row] + at.channel;
    for (int left = at.turns; left > 0; left -= kBatch, from += kBatch * step) {
      PackBatch<T, N, kBatch> batch;
      batch.load(from, step, left);
      for_present<kBatch>(left, [&](int u, auto count) {
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int v = u; v < u + count.value; ++v) {
            const float distance = to_float(batch[v].value[j]) - to_float(pivot.pack().value[j]);
            first[j] += distance;
            second[j] = fmaf(distance, distance, second[j]);
          }
      });
    }
  }
  if (own < at.end) moved[threadIdx.x] = double(to_float(own_pivot)) - own_group_pivot;
  sums.add_up(t, at, first, second);
  store_group_sums(partial, t, at, [&](int channel) {
    const double n = double(at.count), shift = moved[channel];
    const double distance = double(sums.totals[0][channel]), square = double(sums.totals[1][channel]);
    return double2{n * shift + distance, square + shift * (2 * distance + n * shift)};
  });
}

// y = act((x - mean) * scale + shift), per channel.
template <class T, int N, bool kSilu>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    group_normalise(const RowsOf<T> y, float* mean, float* rstd, const double2* partial, const RowsOf<const T> x,
                    const float* w, const float* b, const GroupTiling t, float eps) {
  constexpr int kBatch = 4;
  __shared__ float3 statistics[N * kTileColumns];  // by group of the tile: mean, what its rounding lost, rstd
  __shared__ ChannelTable<N> table;
  const TilePlace at(t, N);
  const int first_group = t.group(at.begin);
  const int64_t x_step = -t.rows * x.stride, y_step = -t.rows * y.stride;
  const T* from = x[at.first + at.count - 1 - at.row] + at.channel;
  T* to = y[at.first + at.count - 1 - at.row] + at.channel;
  PackBatch<T, N, kBatch> batch;
  batch.load(from, x_step, at.turns);
  const int own = ChannelTable<N>::own_channel(t, at);
  const float own_w = own >= 0 && w ? w[own] : 1, own_b = own >= 0 && b ? b[own] : 0;

  wait_for_previous();
  for_groups(t, at, [&](int group) {
    const double pivot = group_pivot(x, t, at.image, group);
    const double2 sum = group_total(partial, t, at.image, group);
    const double distance = sum.x * t.inverse_elements, m = pivot + distance;
    const double variance = fmax(0.0, sum.y * t.inverse_elements - distance * distance);
    const float high = float(m), r = 1 / sqrtf(float(variance) + eps);
    if (threadIdx.x % 32 > 0) return;
    statistics[group - first_group] = {high, float(m - double(high)), r};
    if (at.chunk > 0 || at.tile != t.first_tile(group)) return;
    if (mean) mean[at.image * t.groups + group] = high;
    if (rstd) rstd[at.image * t.groups + group] = r;
  });
  __syncthreads();
  if (own >= 0) {
    const float3 s = statistics[t.group(own) - first_group];
    const float scale = s.z * own_w;
    table.values[threadIdx.x] = {s.x, scale, fmaf(-s.y, scale, own_b), 0};
  }
  __syncthreads();

  for (int left = at.turns; left > 0; left -= kBatch) {
    for_present<kBatch>(left, [&](int u, auto count) {
      for_channels(table, t, at, [&](int j, const float4& c) {
#pragma unroll
        for (int v = u; v < u + count.value; ++v) {
          const float z = fmaf(to_float(batch[v].value[j]) - c.x, c.y, c.z);
          batch[v].value[j] = from_float<T>(kSilu ? z * quick_sigmoid(z) : z);
        }
      });
    });
    batch.store(to, y_step, left);
    batch.load(from += kBatch * x_step, x_step, left - kBatch);
    to += kBatch * y_step;
  }
}

// Of one channel: mean, scale = rstd * w and shift give z = (x - mean) * scale + shift.
template <bool kSilu>
__device__ __forceinline__ float gradient_before_activation(float dy, float distance, const float4& c) {
  if (!kSilu) return dy;
  const float z = fmaf(distance, c.y, c.z);
  return dy * gated_slope(z, quick_sigmoid(z), 1);
}

struct GroupStatistics {
  const float *mean, *rstd, *w, *b;

  // mean, scale, shift, and room for one more
  __device__ __forceinline__ float4 channel(const GroupTiling& t, int64_t image, int channel) const {
    const int64_t group = image * t.groups + t.group(channel);
    return {mean[group], rstd[group] * (w ? w[channel] : 1), b ? b[channel] : 0, 0};
  }
};

// Sums of dz * w and dz * w * x_hat, where dz is the gradient before the activation; for dw and db also those of each
// channel, without w.
template <class T, int N, bool kSilu>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    group_gradient_sums(double2* partial, ChannelSums* channel_sums, const RowsOf<const T> dy, const RowsOf<const T> x,
                        const GroupStatistics s, const GroupTiling t) {
  constexpr int kBatch = 2;
  __shared__ TileSums<N> sums;
  __shared__ ChannelTable<N> table;
  launch_dependents();
  const TilePlace at(t, N);
  const int own = ChannelTable<N>::own_channel(t, at);
  if (own >= 0) table.values[threadIdx.x] = s.channel(t, at.image, own);
  __syncthreads();
  float first[N] = {}, second[N] = {};
  const int64_t x_step = t.rows * x.stride, dy_step = t.rows * dy.stride;
  const T *x_from = x[at.first + at.row] + at.channel, *dy_from = dy[at.first + at.row] + at.channel;
  for (int left = at.turns; left > 0; left -= kBatch, x_from += kBatch * x_step, dy_from += kBatch * dy_step) {
    PackBatch<T, N, kBatch> xs, dys;
    xs.load(x_from, x_step, left);
    dys.load(dy_from, dy_step, left);
    for_present<kBatch>(left, [&](int u, auto count) {
      for_channels(table, t, at, [&](int j, const float4& c) {
#pragma unroll
        for (int v = u; v < u + count.value; ++v) {
          const float distance = to_float(xs[v].value[j]) - c.x;
          const float dz = gradient_before_activation<kSilu>(to_float(dys[v].value[j]), distance, c);
          first[j] += dz;
          second[j] = fmaf(dz, distance, second[j]);
        }
      });
    });
  }
  sums.add_up(t, at, first, second);
  const auto rstd = [&](int channel) { return s.rstd[at.image * t.groups + t.group(at.begin + channel)]; };
  store_group_sums(partial, t, at, [&](int channel) {
    const double w = s.w ? double(s.w[at.begin + channel]) : 1;
    return double2{w * double(sums.totals[0][channel]), w * double(rstd(channel)) * double(sums.totals[1][channel])};
  });
  if (!channel_sums) return;
  for (int channel = int(threadIdx.x); channel < at.end - at.begin; channel += int(blockDim.x))
    channel_sums[(at.image * t.chunks + at.chunk) * t.channels + at.begin + channel] = {
        sums.totals[0][channel], rstd(channel) * sums.totals[1][channel]};
}

// dx = rstd * (dz * w - mean(dz * w) - x_hat * mean(dz * w * x_hat)) = dz * scale - (x - mean) * slope - offset.
template <class T, int N, bool kSilu>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    group_input_gradient(const RowsOf<T> dx, const double2* partial, const RowsOf<const T> dy, const RowsOf<const T> x,
                         const GroupStatistics s, const GroupTiling t) {
  constexpr int kBatch = 2;
  __shared__ float2 slopes[N * kTileColumns];  // by group of the tile: slope, offset
  __shared__ float offsets[N * kTileColumns];  // by channel, as in the table
  __shared__ ChannelTable<N> table;
  const TilePlace at(t, N);
  const int first_group = t.group(at.begin);
  const int64_t last = at.first + at.count - 1 - at.row;
  const int64_t x_step = -t.rows * x.stride, dy_step = -t.rows * dy.stride, dx_step = -t.rows * dx.stride;
  const T *x_from = x[last] + at.channel, *dy_from = dy[last] + at.channel;
  T* to = dx[last] + at.channel;
  PackBatch<T, N, kBatch> xs, dys;
  xs.load(x_from, x_step, at.turns);
  dys.load(dy_from, dy_step, at.turns);
  const int own = ChannelTable<N>::own_channel(t, at);
  const float4 own_entry = own >= 0 ? s.channel(t, at.image, own) : float4{};

  wait_for_previous();
  for_groups(t, at, [&](int group) {
    const double2 sum = group_total(partial, t, at.image, group);
    const float r = s.rstd[at.image * t.groups + group];
    const float mean_dz = float(sum.x * t.inverse_elements), mean_dz_x = float(sum.y * t.inverse_elements);
    if (threadIdx.x % 32 == 0) slopes[group - first_group] = {r * r * mean_dz_x, r * mean_dz};
  });
  __syncthreads();
  if (own >= 0) {
    const float2 slope = slopes[t.group(own) - first_group];
    table.values[threadIdx.x] = {own_entry.x, own_entry.y, own_entry.z, slope.x};
    offsets[threadIdx.x] = slope.y;
  }
  __syncthreads();

  for (int left = at.turns; left > 0; left -= kBatch) {
    for_present<kBatch>(left, [&](int u, auto count) {
      for_channels(table, t, at, [&](int j, const float4& c) {
        const float offset = offsets[j * t.columns + at.column];
#pragma unroll
        for (int v = u; v < u + count.value; ++v) {
          const float distance = to_float(xs[v].value[j]) - c.x;
          const float dz = gradient_before_activation<kSilu>(to_float(dys[v].value[j]), distance, c);
          dys[v].value[j] = from_float<T>(fmaf(dz, c.y, -fmaf(distance, c.w, offset)));
        }
      });
    });
    dys.store(to, dx_step, left);
    xs.load(x_from += kBatch * x_step, x_step, left - kBatch);
    dys.load(dy_from += kBatch * dy_step, dy_step, left - kBatch);
    to += kBatch * dx_step;
  }
}

template <class F>
void dispatch_silu(bool silu, F&& f) {
  silu ? f(std::true_type()) : f(std::false_type());
}

}  // namespace

void CudaBackend::group_norm(View y, View mean, View rstd, View x, View w, View b, int groups, float eps, bool silu) {
  if (x.numel() == 0) return;
  const DType dtype = common_dtype({x, y});
  const RowInput input(*this, x, dtype);
  const RowOutput output(*this, y, dtype);
  const DenseInput weight(*this, w, DType::f32), bias(*this, b, DType::f32);
  const DenseOutput means(*this, mean, DType::f32), rstds(*this, rstd, DType::f32);
  dispatch_packs(dtype, input.packs() && output.packs(), [&](auto type, auto pack) {
    using T = typename decltype(type)::type;
    constexpr int N = decltype(pack)::value;
    const GroupTiling t(*this, x, groups, N);
    const Scratch partial(*this, t.sum_bytes());
    group_statistics<T, N><<<t.blocks(), t.threads(), 0, stream_>>>(partial.as<double2>(), input.rows<const T>(), t);
    cuda_launched("group_statistics");
    const Launch second{.grid = t.blocks(), .block = t.threads(), .overlap = capability_ >= 90};
    dispatch_silu(silu, [&](auto activated) {
      launch("group_normalise", stream_, second, group_normalise<T, N, activated.value>, output.rows<T>(),
             means.as<float>(), rstds.as<float>(), partial.as<double2>(), input.rows<const T>(), weight.as<float>(),
             bias.as<float>(), t, eps);
    });
  });
  output.finish();
  means.finish();
  rstds.finish();
}

void CudaBackend::group_norm_backward(View dx, View dw, View db, View dy, View x, View w, View b, View mean, View rstd,
                                      int groups, bool silu) {
  if (x.numel() == 0) {
    for (const View& v : {dw, db})
      if (v) fill(v, 0);
    return;
  }
  const DType dtype = common_dtype({x, dy, dx});
  const RowInput input(*this, x, dtype), gradient(*this, dy, dtype);
  const RowOutput output(*this, dx, dtype);
  const DenseInput weight(*this, w, DType::f32), bias(*this, b, DType::f32);
  const DenseInput means(*this, mean, DType::f32), rstds(*this, rstd, DType::f32);
  const DenseOutput dweight(*this, dw, DType::f32), dbias(*this, db, DType::f32);
  const GroupStatistics statistics{means.as<float>(), rstds.as<float>(), weight.as<float>(), bias.as<float>()};
  dispatch_packs(dtype, input.packs() && gradient.packs() && output.packs(), [&](auto type, auto pack) {
    using T = typename decltype(type)::type;
    constexpr int N = decltype(pack)::value;
    const GroupTiling t(*this, x, groups, N);
    const Scratch partial(*this, t.sum_bytes());
    const Scratch channel_sums(*this, dw || db ? size_t(t.images * t.chunks * t.channels) * sizeof(ChannelSums) : 0);
    ChannelSums* const sums = dw || db ? channel_sums.as<ChannelSums>() : nullptr;
    const Launch first{.grid = t.blocks(), .block = t.threads()},
        second{t.blocks(), t.threads(), 0, 1, capability_ >= 90};
    dispatch_silu(silu, [&](auto activated) {
      launch("group_gradient_sums", stream_, first, group_gradient_sums<T, N, activated.value>, partial.as<double2>(),
             sums, gradient.rows<const T>(), input.rows<const T>(), statistics, t);
      if (dx)
        launch("group_input_gradient", stream_, second, group_input_gradient<T, N, activated.value>, output.rows<T>(),
               partial.as<double2>(), gradient.rows<const T>(), input.rows<const T>(), statistics, t);
    });
    if (sums) finish_channel_sums(*this, {dweight.as<float>(), dbias.as<float>()}, sums, t);
  });
  output.finish();
  dweight.finish();
  dbias.finish();
}

}  // namespace wick
