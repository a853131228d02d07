// Nearest-neighbour upsampling of images [B, H, W, C] by integer factors.
#include <cassert>

#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/numbers.cuh"
#include "wick/backend/cuda/map/walk.cuh"
#include "wick/backend/cuda/runtime/dense.h"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kThreads = 256;

// The large image [B, H * v, W * h, C] as [B, H, v, W, h, C].
View blocks_of(const View& large, const View& small) {
  const int64_t vertical = large.dim(1) / small.dim(1), horizontal = large.dim(2) / small.dim(2);
  assert(small.dim(1) * vertical == large.dim(1) && small.dim(2) * horizontal == large.dim(2));
  const Shape& s = large.stride;
  return {large.data,
          large.dtype,
          {small.dim(0), small.dim(1), vertical, small.dim(2), horizontal, small.dim(3)},
          {s[0], s[1] * vertical, s[1], s[2] * horizontal, s[2], s[3]}};
}

// One small pixel's pack of channels: the sum over its block of large ones. Item i is pack i of the dense dx, whose
// lines hold `line` packs; a large line is `horizontal` times as long.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    sum_blocks(T* dx, const T* dy, int64_t count, uint32_t line, Divisor pixel, int vertical, int horizontal) {
  const int64_t item = int64_t(blockIdx.x) * kThreads + threadIdx.x, above = item / line;
  if (item >= count) return;
  const uint32_t in_line = uint32_t(item - above * line);
  const uint32_t column = pixel.divide(in_line), pack = in_line - column * pixel.divisor;
  float sum[kWidth] = {};
  for (int v = 0; v < vertical; ++v) {
    const int64_t large_line = (above * vertical + v) * line * horizontal;
    for (int h = 0; h < horizontal; ++h) {
      const int64_t at = large_line + (int64_t(column) * horizontal + h) * pixel.divisor + pack;
      const auto more = *reinterpret_cast<const Pack<T, kWidth>*>(dy + at * kWidth);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sum[k] += to_float(more.value[k]);
    }
  }
  Pack<T, kWidth> out;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) out.value[k] = from_float<T>(sum[k]);
  *reinterpret_cast<Pack<T, kWidth>*>(dx + int64_t(item) * kWidth) = out;
}

template <class T, int kWidth>
void launch(cudaStream_t stream, const View& dx, const View& dy) {
  const int64_t channels = dx.dim(3) / kWidth, count = dx.numel() / kWidth;
  sum_blocks<T, kWidth><<<unsigned(ceil_div(count, kThreads)), kThreads, 0, stream>>>(
      dx.as<T>(), dy.as<const T>(), count, uint32_t(dx.dim(2) * channels), Divisor(channels),
      int(dy.dim(1) / dx.dim(1)), int(dy.dim(2) / dx.dim(2)));
  cuda_launched("upsample_nearest_backward");
}

}  // namespace

// A copy of an image in which every pixel is there several times.
void CudaBackend::upsample_nearest(View y, View x) {
  if (y.numel() == 0) return;
  const View large = blocks_of(y, x);
  const Shape& s = x.stride;
  copy(large, {x.data, x.dtype, large.shape, {s[0], s[1], 0, s[2], 0, s[3]}});
}

void CudaBackend::upsample_nearest_backward(View dx, View dy) {
  if (dx.numel() == 0) return;
  const DenseInput input(*this, dy);
  const DenseOutput output(*this, dx, dy.dtype);
  dispatch_float(dy.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kWidth = Pack<T>::kSize;
    const auto bits = reinterpret_cast<uintptr_t>(input.view().data) | reinterpret_cast<uintptr_t>(output.view().data);
    if (dx.dim(3) % kWidth == 0 && bits % 16 == 0)
      launch<T, kWidth>(stream_, output.view(), input.view());
    else
      launch<T, 1>(stream_, output.view(), input.view());
  });
  output.finish();
}

}  // namespace wick
