// Nearest-neighbour upsampling of images [B, H, W, C] by integer factors.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/parallel.h"

namespace wick {
namespace {

struct Upsampling {
  int64_t lines, width, channels;  // of the small image: B * H lines
  int64_t vertical, horizontal;    // factors
  int64_t small_line, large_line;  // elements

  Upsampling(const View& small, const View& large)
      : lines(small.dim(0) * small.dim(1)),
        width(small.dim(2)),
        channels(small.dim(3)),
        vertical(large.dim(1) / std::max<int64_t>(1, small.dim(1))),
        horizontal(large.dim(2) / std::max<int64_t>(1, width)),
        small_line(width * channels),
        large_line(small_line * horizontal) {
    assert(small.dim(1) * vertical == large.dim(1) && small.dim(2) * horizontal == large.dim(2));
  }
};

}  // namespace

void CpuBackend::upsample_nearest(View y, View x) {
  const Upsampling up(x, y);
  const DenseInput input(x);
  const DenseOutput output(y);
  parallel_for(up.lines, y.numel(), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const float* from = input.data() + line * up.small_line;
      float* const first = output.data() + line * up.vertical * up.large_line;
      float* to = first;
      for (int64_t w = 0; w < up.width; ++w, from += up.channels)
        for (int64_t k = 0; k < up.horizontal; ++k) to = std::copy_n(from, up.channels, to);
      for (int64_t k = 1; k < up.vertical; ++k) to = std::copy_n(first, up.large_line, to);
    }
  });
  output.finish();
}

void CpuBackend::upsample_nearest_backward(View dx, View dy) {
  const Upsampling up(dx, dy);
  const DenseInput input(dy);
  const DenseOutput output(dx);
  parallel_for(up.lines, dy.numel(), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line)
      for (int64_t w = 0; w < up.width; ++w) {
        float* const to = output.data() + line * up.small_line + w * up.channels;
        const float* const from = input.data() + line * up.vertical * up.large_line + w * up.horizontal * up.channels;
        std::copy_n(from, up.channels, to);
        for (int64_t pixel = 1; pixel < up.vertical * up.horizontal; ++pixel) {
          const float* more = from + pixel / up.horizontal * up.large_line + pixel % up.horizontal * up.channels;
#pragma omp simd
          for (int64_t c = 0; c < up.channels; ++c) to[c] += more[c];
        }
      }
  });
  output.finish();
}

}  // namespace wick
