// Norms of rows: layer_norm, forward and backward. A row stays in registers between its statistics and its use; the
// sums over rows behind the gradients of weights and modulations are taken apart (device/tiles.cuh).
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/device/tiles.cuh"

namespace wick {
namespace {

template <int N>
__device__ __forceinline__ void load_floats(float (&to)[N], const float* from, int first, float otherwise) {
  constexpr int kPack = N % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int j = 0; j < N; j += kPack) {
    const auto pack = from ? load_pack<kPack>(from + first + j) : Pack<float, kPack>();
#pragma unroll
    for (int k = 0; k < kPack; ++k) to[j + k] = from ? pack.value[k] : otherwise;
  }
}

template <class T, int N>
__device__ __forceinline__ void load_floats(float (&to)[N], const T* from, int first) {
  const auto pack = from ? load_pack<N>(from + first) : Pack<T, N>();
#pragma unroll
  for (int j = 0; j < N; ++j) to[j] = from ? to_float(pack.value[j]) : 0;
}

// What follows the normalisation: x_hat * w + b, then * (1 + scale) + shift with one row of each for an image. Pointers
// may be null.
template <class T>
struct RowAffine {
  const float *w, *b;
  RowsOf<const T> scale, shift;
  int64_t image_rows;
};

// The same for one row: x_hat * gain + offset.
template <class T>
class AffineOf {
 public:
  __device__ __forceinline__ AffineOf(const RowAffine<T>& a, int64_t row) : w_(a.w), b_(a.b) {
    const int64_t image = a.scale.data || a.shift.data ? row / a.image_rows : 0;
    scale_ = a.scale.data ? a.scale[image] : nullptr;
    shift_ = a.shift.data ? a.shift[image] : nullptr;
  }
  template <int N>
  __device__ __forceinline__ void load_gain(float (&gain)[N], int first) const {
    float scale[N];
    load_floats(gain, w_, first, 1);
    load_floats(scale, scale_, first);
#pragma unroll
    for (int j = 0; j < N; ++j) gain[j] = fmaf(gain[j], scale[j], gain[j]);
  }
  template <int N>
  __device__ __forceinline__ void load_offset(float (&offset)[N], int first) const {
    float scale[N], shift[N];
    load_floats(offset, b_, first, 0);
    load_floats(scale, scale_, first);
    load_floats(shift, shift_, first);
#pragma unroll
    for (int j = 0; j < N; ++j) offset[j] = fmaf(offset[j], scale[j], offset[j]) + shift[j];
  }

 private:
  const float *w_, *b_;
  const T *scale_, *shift_;
};

// Without `centred` the mean counts as 0.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    row_norm(const RowsOf<T> y, float* mean, float* rstd, const RowsOf<const T> x, const RowAffine<T> a, int64_t rows,
             int width, float eps, bool centred) {
  const int64_t row = this_row();
  if (row >= rows) return;
  const HeldRows<T, N, 1> held({x[row]}, width);
  const float inverse_width = 1 / float(width);
  float pivot = 0;  // the mean, but for rounding, which the distances from it show
  if (centred) {
    held.each([&](int, const Pack<T, N>(&pack)[1]) {
      float part = 0;
#pragma unroll
      for (int j = 0; j < N; ++j) part += to_float(pack[0].value[j]);
      pivot += part;
    });
    pivot = block_reduce<Sum>(pivot) * inverse_width;
  }
  float sums[2] = {};
  held.each([&](int, const Pack<T, N>(&pack)[1]) {
    float distance = 0, square = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float d = to_float(pack[0].value[j]) - pivot;
      distance += d;
      square = fmaf(d, d, square);
    }
    sums[0] += distance;
    sums[1] += square;
  });
  block_reduce<Sum>(sums);
  const float rest = centred ? sums[0] * inverse_width : 0;
  const float r = 1 / sqrtf(fmaf(-rest, rest, sums[1] * inverse_width) + eps);
  if (threadIdx.x == 0 && mean) mean[row] = pivot + rest;
  if (threadIdx.x == 0 && rstd) rstd[row] = r;
  T* const to = y[row];
  const AffineOf<T> affine(a, row);
  held.each([&](int first, const Pack<T, N>(&pack)[1]) {
    float gain[N], offset[N];
    affine.load_gain(gain, first);
    affine.load_offset(offset, first);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float x_hat = (to_float(pack[0].value[j]) - pivot - rest) * r;
      out.value[j] = from_float<T>(fmaf(x_hat, gain[j], offset[j]));
    }
    store_pack(to + first, out);
  });
}

// dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat)) with g = dy * gain; without a mean of x, none of g either.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    row_norm_gradient(const RowsOf<T> dx, const RowsOf<const T> dy, const RowsOf<const T> x, const RowAffine<T> a,
                      const float* mean, const float* rstd, int64_t rows, int width) {
  const int64_t row = this_row();
  if (row >= rows) return;
  const HeldRows<T, N, 2> held({dy[row], x[row]}, width);
  const AffineOf<T> affine(a, row);
  const float m = mean ? mean[row] : 0, r = rstd[row];
  float sums[2] = {};
  held.each([&](int first, const Pack<T, N>(&packs)[2]) {
    float gain[N];
    affine.load_gain(gain, first);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = to_float(packs[0].value[j]) * gain[j];
      sums[0] += g;
      sums[1] = fmaf(g, to_float(packs[1].value[j]) - m, sums[1]);
    }
  });
  block_reduce<Sum>(sums);
  const float offset = mean ? r * sums[0] / float(width) : 0, slope = r * r * r * (sums[1] / float(width));
  T* const to = dx[row];
  held.each([&](int first, const Pack<T, N>(&packs)[2]) {
    float gain[N];
    affine.load_gain(gain, first);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = to_float(packs[0].value[j]) * gain[j], distance = to_float(packs[1].value[j]) - m;
      out.value[j] = from_float<T>(fmaf(g, r, -fmaf(distance, slope, offset)));
    }
    store_pack(to + first, out);
  });
}

// Sums of dy and of dy * x_hat over the rows of each chunk.
template <class T, int N>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    row_gradient_sums(ChannelSums* channel_sums, const RowsOf<const T> dy, const RowsOf<const T> x, const float* mean,
                      const float* rstd, const Tiling t) {
  constexpr int kBatch = 2;
  __shared__ TileSums<N> sums;
  const TilePlace at(t, N);
  float first[N] = {}, second[N] = {};
  const int64_t x_step = t.rows * x.stride, dy_step = t.rows * dy.stride;
  int64_t row = at.first + at.row;
  const T *x_from = x[row] + at.channel, *dy_from = dy[row] + at.channel;
  for (int left = at.turns; left > 0; left -= kBatch, x_from += kBatch * x_step, dy_from += kBatch * dy_step) {
    PackBatch<T, N, kBatch> xs, dys;
    xs.load(x_from, x_step, left);
    dys.load(dy_from, dy_step, left);
#pragma unroll
    for (int u = 0; u < kBatch; ++u, row += t.rows) {
      if (u >= left) break;
      const float m = mean ? mean[row] : 0, r = rstd[row];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float g = to_float(dys[u].value[j]);
        first[j] += g;
        second[j] = fmaf(g, (to_float(xs[u].value[j]) - m) * r, second[j]);
      }
    }
  }
  sums.add_up(t, at, first, second);
  for (int channel = int(threadIdx.x); channel < at.end - at.begin; channel += int(blockDim.x))
    channel_sums[(at.image * t.chunks + at.chunk) * t.channels + at.begin + channel] = {sums.totals[0][channel],
                                                                                        sums.totals[1][channel]};
}

}  // namespace

void CudaBackend::layer_norm(View y, View mean, View rstd, View x, View w, View b, float eps) {
  if (x.numel() == 0) return;
  const DType dtype = common_dtype({x, y});
  const RowInput input(*this, x, dtype);
  const RowOutput output(*this, y, dtype);
  const DenseInput weight(*this, w, DType::f32), bias(*this, b, DType::f32);
  const DenseOutput means(*this, mean, DType::f32), rstds(*this, rstd, DType::f32);
  const int64_t width = x.dim(-1), rows = x.numel() / width;
  const bool packs = input.packs() && output.packs() && aligned(weight.view().data) && aligned(bias.view().data);
  dispatch_packs(dtype, packs, [&](auto type, auto pack) {
    using T = typename decltype(type)::type;
    const dim3 threads = row_threads(width / pack.value);
    row_norm<T, pack.value><<<row_blocks(rows, threads), threads, 0, stream_>>>(
        output.rows<T>(), means.as<float>(), rstds.as<float>(), input.rows<const T>(),
        RowAffine<T>{weight.as<float>(), bias.as<float>(), {}, {}, rows}, rows, int(width), eps, true);
    cuda_launched("row_norm");
  });
  output.finish();
  means.finish();
  rstds.finish();
}

void CudaBackend::layer_norm_backward(View dx, View dw, View db, View dy, View x, View w, View mean, View rstd) {
  if (x.numel() == 0) {
    for (const View& v : {dw, db})
      if (v) fill(v, 0);
    return;
  }
  const DType dtype = common_dtype({x, dy, dx});
  const RowInput input(*this, x, dtype), gradient(*this, dy, dtype);
  const RowOutput output(*this, dx, dtype);
  const DenseInput weight(*this, w, DType::f32), means(*this, mean, DType::f32), rstds(*this, rstd, DType::f32);
  const DenseOutput dweight(*this, dw, DType::f32), dbias(*this, db, DType::f32);
  const int64_t width = x.dim(-1), rows = x.numel() / width;
  const bool packs = input.packs() && gradient.packs() && output.packs() && aligned(weight.view().data);
  dispatch_packs(dtype, packs, [&](auto type, auto pack) {
    using T = typename decltype(type)::type;
    constexpr int N = pack.value;
    if (dx) {
      const dim3 threads = row_threads(width / N);
      row_norm_gradient<T, N><<<row_blocks(rows, threads), threads, 0, stream_>>>(
          output.rows<T>(), gradient.rows<const T>(), input.rows<const T>(),
          RowAffine<T>{weight.as<float>(), nullptr, {}, {}, rows}, means.as<float>(), rstds.as<float>(), rows,
          int(width));
      cuda_launched("row_norm_gradient");
    }
    if (!dw && !db) return;
    const Tiling t(*this, 1, rows, width, N);
    const Scratch sums(*this, size_t(t.chunks * width) * sizeof(ChannelSums));
    row_gradient_sums<T, N><<<t.blocks(), t.threads(), 0, stream_>>>(sums.as<ChannelSums>(), gradient.rows<const T>(),
                                                                     input.rows<const T>(), means.as<float>(),
                                                                     rstds.as<float>(), t);
    cuda_launched("row_gradient_sums");
    finish_channel_sums(*this, {dweight.as<float>(), dbias.as<float>()}, sums.as<ChannelSums>(), t);
  });
  output.finish();
  dweight.finish();
  dbias.finish();
}

}  // namespace wick
