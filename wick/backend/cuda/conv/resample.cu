// The gradient of nearest-neighbour upsampling: sums over blocks of pixels of images [B, H, W, C].
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
void launch_sum(cudaStream_t stream, const View& dx, const View& dy) {
  const int64_t channels = dx.dim(3) / kWidth, count = dx.numel() / kWidth;
  const int64_t vertical = dy.dim(1) / dx.dim(1), horizontal = dy.dim(2) / dx.dim(2);
  assert(dx.dim(1) * vertical == dy.dim(1) && dx.dim(2) * horizontal == dy.dim(2));
  launch("upsample_nearest_backward", stream, {unsigned(ceil_div(count, kThreads)), kThreads}, sum_blocks<T, kWidth>,
         dx.as<T>(), dy.as<const T>(), count, uint32_t(dx.dim(2) * channels), Divisor(channels), int(vertical),
         int(horizontal));
}

}  // namespace

void CudaBackend::upsample_nearest_backward(View dx, View dy) {
  if (dx.numel() == 0) return;
  const DenseInput input(*this, dy);
  const DenseOutput output(*this, dx, dy.dtype);
  dispatch_float(dy.dtype, [&]<class T>(Type<T>) {
    constexpr int kWidth = Pack<T>::kSize;
    if (dx.dim(3) % kWidth == 0 && aligned(input.view().data) && aligned(output.view().data))
      launch_sum<T, kWidth>(stream_, output.view(), input.view());
    else
      launch_sum<T, 1>(stream_, output.view(), input.view());
  });
  output.finish();
}

}  // namespace wick
