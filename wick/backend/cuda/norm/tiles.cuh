// Sums along the positions of [images, positions, channels], in two stages and a fixed order: a block sums over a chunk
// of consecutive positions of one image, for a tile of neighbouring channels; another kernel sums over the chunks.
// A thread owns one pack of N channels and every rows-th position of its chunk.
#pragma once

#include <algorithm>
#include <cstdint>

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/map/rows.cuh"
#include "wick/backend/cuda/map/walk.cuh"
#include "wick/backend/cuda/runtime/any_float.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {

inline constexpr int kTileThreads = 512;
inline constexpr int kTileBlocks = 2;    // per SM at once, so 64 registers a thread
inline constexpr int kTileColumns = 32;  // threads across a tile, at most: 512 bytes of a row
inline constexpr int kTileRows = 64;     // threads down, at most

struct Tiling {
  int64_t images, positions, chunks;
  int64_t chunk_positions, longer;  // of each chunk; this many at the front have one more
  int channels, tile_channels, tiles;
  int columns, rows;  // of threads
  Divisor by_columns, by_rows, by_tiles, by_chunks;

  // As many blocks as the device runs at once: more chunks would only make the second stage longer.
  Tiling(const CudaBackend& cuda, int64_t image_count, int64_t position_count, int64_t channel_count, int pack,
         int blocks_at_once = kTileBlocks)
      : images(image_count), positions(position_count), channels(int(channel_count)) {
    const int packs = channels / pack, fewest = ceil_div(packs, kTileColumns);
    tiles = fewest;
    while (packs % tiles != 0 && tiles < 2 * fewest) ++tiles;
    if (packs % tiles != 0) tiles = fewest;  // then the last one is narrower
    columns = ceil_div(packs, tiles);
    tiles = ceil_div(packs, columns);
    tile_channels = columns * pack;
    rows = std::min(kTileThreads / columns, kTileRows);
    const int64_t most = ceil_div(positions, rows);
    chunks = std::clamp<int64_t>(blocks_at_once * cuda.multiprocessors() / (images * tiles), 1, most);
    chunk_positions = positions / chunks;
    longer = positions % chunks;
    by_columns = Divisor(columns);
    by_rows = Divisor(rows);
    by_tiles = Divisor(tiles);
    by_chunks = Divisor(chunks);
  }
  // The turns of the busiest thread.
  __host__ __device__ int most_turns() const { return int(ceil_div(chunk_positions + (longer > 0), rows)); }
  unsigned blocks() const { return unsigned(images * chunks * tiles); }
  unsigned threads() const { return unsigned(columns * rows + 31) / 32 * 32; }
};

// Where a thread works.
struct TilePlace {
  int64_t image, chunk;
  int64_t first, count;  // positions of the chunk, counted over all images
  int tile, column, row;
  int begin, end;  // the tile's channels
  int channel;     // the thread's first
  int turns;       // positions that the thread works on; 0 beyond the end of the tile

  __device__ TilePlace(const Tiling& t, int pack) {
    const unsigned chunk_of_all = t.by_tiles.divide(blockIdx.x), image_number = t.by_chunks.divide(chunk_of_all);
    tile = int(blockIdx.x - chunk_of_all * unsigned(t.tiles));
    chunk = chunk_of_all - image_number * unsigned(t.chunks);
    image = image_number;
    row = int(t.by_columns.divide(threadIdx.x));
    column = int(threadIdx.x) - row * t.columns;
    begin = tile * t.tile_channels;
    end = min(begin + t.tile_channels, t.channels);
    channel = begin + column * pack;
    first = image * t.positions + chunk * t.chunk_positions + min(chunk, t.longer);
    count = t.chunk_positions + (chunk < t.longer);
    turns = row < t.rows && channel < end ? int(t.by_rows.divide(unsigned(count + t.rows - 1 - row))) : 0;
  }
};

// The first rows of the block's tile, for a kernel that must yet wait before it may read them.
template <class T>
__device__ __forceinline__ void prefetch_tile(const RowsOf<const T>& x, const TilePlace& at, int most = 128) {
  const int i = int(threadIdx.x);
  if (i < most && i < at.count) prefetch(x[at.first + i] + at.begin, at.end - at.begin);
}

// `Batch` packs, `step` elements apart, all on their way before the first is used. Only the first `present` are there.
template <class T, int N, int Batch>
class PackBatch {
 public:
  __device__ __forceinline__ void load(const T* x, int64_t step, int present) {
#pragma unroll
    for (int u = 0; u < Batch; ++u)
      if (u < present) held_[u] = PackWords<T, N>::load(x + u * step);
  }
  __device__ __forceinline__ void store(T* y, int64_t step, int present) const {
#pragma unroll
    for (int u = 0; u < Batch; ++u)
      if (u < present) held_[u].store(y + u * step);
  }
  __device__ __forceinline__ Pack<T, N>& operator[](int u) { return held_[u].pack(); }

 private:
  PackWords<T, N> held_[Batch];
};

// Calls f(first, a constant count) with the present ones of `Batch`: with all of them, or one by one.
template <int Batch, class F>
__device__ __forceinline__ void for_present(int present, const F& f) {
  if (present >= Batch) return f(0, std::integral_constant<int, Batch>());
#pragma unroll
  for (int u = 0; u < Batch - 1; ++u)
    if (u < present) f(u, std::integral_constant<int, 1>());
}

// Adds up two sums a channel over the block's rows of threads, one after the other. All threads call it.
template <int N>
struct TileSums {
  float partial[N * kTileThreads];
  float totals[2][N * kTileColumns];  // by channel of the tile

  __device__ void add_up(const Tiling& t, const TilePlace& at, const float (&first)[N], const float (&second)[N]) {
    add_up(t, at, first, 0);
    add_up(t, at, second, 1);
  }
  __device__ void add_up(const Tiling& t, const TilePlace& at, const float (&sums)[N], int which) {
    if (at.row < t.rows && at.channel < at.end) {
#pragma unroll
      for (int j = 0; j < N; ++j) partial[(j * t.rows + at.row) * t.columns + at.column] = sums[j];
    }
    __syncthreads();
    // There are more rows of threads than sums of a column.
    static_assert(kTileThreads / kTileColumns >= N && kTileRows >= N);
    if (at.row < N) {
      float sum = 0;
#pragma unroll 8
      for (int row = 0; row < t.rows; ++row) sum += partial[(at.row * t.rows + row) * t.columns + at.column];
      totals[which][at.column * N + at.row] = sum;
    }
    __syncthreads();
  }
};

// Sums for a norm's channels over a chunk of positions, as [images, chunks, channels]: of the gradient behind weight
// and bias, and of that times the normalised x.
struct ChannelSums {
  float plain, scaled;
};

inline constexpr int kFinishColumns = 32, kFinishRows = 16;

// The affine map behind a normalisation: x_hat * w + b, then * (1 + scale) + shift with one row of each for an image,
// in f32 or the activations' type V. Pointers may be null.
template <class V>
struct RowAffine {
  const float *w, *b;
  RowsOf<const V> scale, shift;
  int64_t image_rows;
};

// A view [images, channels] of any dtype and layout, to write; or nothing.
struct ImageVectors {
  AnyFloats to{};
  int64_t image = 0, channel = 0;  // strides

  ImageVectors() = default;
  explicit ImageVectors(const View& v) : ImageVectors() {
    if (v) to = AnyFloats(v), image = v.stride[0], channel = v.stride[1];
  }
  __device__ __forceinline__ void store(int64_t i, int c, float value) const {
    if (to.data) to.store(i * image + c * channel, value);
  }
  bool is_wanted() const { return to.data; }
};
struct AffineGradients {  // each may be absent
  float *dw = nullptr, *db = nullptr;
  ImageVectors dscale, dshift;
};

// The gradients from the sums of each image's chunks. `beside`: the kernel before only started after the sums were
// there, and goes on meanwhile.
template <class V>
__global__ void __launch_bounds__(kFinishColumns* kFinishRows)
    finish_affine(const AffineGradients out, const ChannelSums* sums, const RowAffine<V> a, int64_t images,
                  int64_t chunks, int channels, bool beside) {
  __shared__ double partial[2][kFinishRows][kFinishColumns];
  launch_dependents();
  if (!beside) wait_for_previous();
  const int column = int(threadIdx.x), row = int(threadIdx.y), channel = int(blockIdx.x) * kFinishColumns + column;
  const bool inside = channel < channels;
  const float w = inside && a.w ? a.w[channel] : 1, b = inside && a.b ? a.b[channel] : 0;
  double dw = 0, db = 0;
  for (int64_t image = 0; image < images; ++image) {
    double plain = 0, scaled = 0;
#pragma unroll 4
    for (int64_t i = row; inside && i < chunks; i += kFinishRows) {
      const ChannelSums s = sums[(image * chunks + i) * channels + channel];
      plain += double(s.plain);
      scaled += double(s.scaled);
    }
    partial[0][row][column] = plain;
    partial[1][row][column] = scaled;
    __syncthreads();
    if (row == 0 && inside) {
      for (int r = 1; r < kFinishRows; ++r) {
        plain += partial[0][r][column];
        scaled += partial[1][r][column];
      }
      const double factor = a.scale.data ? 1 + double(to_float(a.scale[image][channel])) : 1;
      dw += factor * scaled;
      db += factor * plain;
      out.dscale.store(image, channel, float(w * scaled + b * plain));
      out.dshift.store(image, channel, float(plain));
    }
    __syncthreads();
  }
  wait_for_previous();
  if (row > 0 || !inside) return;
  if (out.dw) out.dw[channel] = float(dw);
  if (out.db) out.db[channel] = float(db);
}

// Where nothing tells images apart, the chunks of all are as good as those of one.
template <class V>
void finish_gradients(const CudaBackend& cuda, const AffineGradients& out, const ChannelSums* sums,
                      const RowAffine<V>& a, const Tiling& t, bool beside = false) {
  const bool apart = a.scale.data || out.dscale.is_wanted() || out.dshift.is_wanted();
  const int64_t images = apart ? t.images : 1;
  launch("norm gradients", cuda.stream(),
         overlapped(cuda, unsigned(ceil_div(t.channels, kFinishColumns)), dim3(kFinishColumns, kFinishRows)),
         finish_affine<V>, out, sums, a, images, t.images * t.chunks / images, t.channels, beside);
}

}  // namespace wick
