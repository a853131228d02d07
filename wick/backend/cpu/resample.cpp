// The gradient of nearest-neighbour upsampling: sums over blocks of pixels of images [B, H, W, C].
#include <algorithm>
#include <cassert>

#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/parallel.h"

namespace wick {

void CpuBackend::upsample_nearest_backward(View dx, View dy) {
  const DenseInput input(dy);
  const DenseOutput output(dx);
  const int64_t lines = dx.dim(0) * dx.dim(1), width = dx.dim(2), channels = dx.dim(3);
  const int64_t vertical = dy.dim(1) / std::max<int64_t>(1, dx.dim(1));
  const int64_t horizontal = dy.dim(2) / std::max<int64_t>(1, width), large_line = width * horizontal * channels;
  assert(dx.dim(1) * vertical == dy.dim(1) && width * horizontal == dy.dim(2));
  parallel_each(lines, dy.numel(), [&](int64_t line) {
    for (int64_t w = 0; w < width; ++w) {
      float* const to = output.data() + (line * width + w) * channels;
      const float* const from = input.data() + line * vertical * large_line + w * horizontal * channels;
      std::copy_n(from, channels, to);
      for (int64_t pixel = 1; pixel < vertical * horizontal; ++pixel) {
        const float* more = from + pixel / horizontal * large_line + pixel % horizontal * channels;
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) to[c] += more[c];
      }
    }
  });
  output.finish();
}

}  // namespace wick
