#include "wick/backend/cuda/conv/columns.h"

#include <algorithm>

#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/numbers.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kThreads = 256;

// The image's index along one axis, or -1.
__device__ __forceinline__ int64_t source(const Columns& c, int64_t i, int64_t p, int64_t before, int64_t extent) {
  const int64_t at = c.multiplier * i + c.direction * p + before;
  return at >= 0 && at % c.divisor == 0 && at / c.divisor < extent ? at / c.divisor : -1;
}

// One Word (a vector of neighbouring channels) a thread. `c` counts channels in words.
template <class Word>
__global__ void gather(Word* out, const Word* image, Columns c, int64_t first, int64_t words) {
  for (int64_t n = blockIdx.x * int64_t(kThreads) + threadIdx.x; n < words; n += int64_t(gridDim.x) * kThreads) {
    const int64_t channel = n % c.channels, tap = n / c.channels % (c.kh * c.kw);
    const int64_t pixel = first + n / (c.channels * c.kh * c.kw);
    const int64_t j = pixel % c.out_width, i = pixel / c.out_width % c.out_height;
    const int64_t b = pixel / (c.out_width * c.out_height);
    const int64_t h = source(c, i, tap / c.kw, c.above, c.height), w = source(c, j, tap % c.kw, c.left, c.width);
    out[n] = h < 0 || w < 0 ? Word{} : image[((b * c.height + h) * c.width + w) * c.channels + channel];
  }
}

template <class Word>
void gather_words(CudaBackend& cuda, void* out, const View& image, Columns c, int64_t first, int64_t rows) {
  c.channels = c.channels * int64_t(size_of(image.dtype)) / int64_t(sizeof(Word));
  const int64_t words = rows * c.row_length();
  const int64_t blocks = std::min<int64_t>(ceil_div(words, kThreads), int64_t(cuda.multiprocessors()) * 32);
  launch("gather_columns", cuda.stream(), {unsigned(blocks), kThreads}, gather<Word>, static_cast<Word*>(out),
         image.as<const Word>(), c, first, words);
}

}  // namespace

void gather_columns(CudaBackend& cuda, void* rows_out, const View& image, const Columns& columns, int64_t first,
                    int64_t rows) {
  if (rows * columns.row_length() == 0) return;
  const int64_t pixel_bytes = columns.channels * int64_t(size_of(image.dtype));
  if (pixel_bytes % 16 == 0 && aligned(image.data))
    return gather_words<uint4>(cuda, rows_out, image, columns, first, rows);
  if (size_of(image.dtype) == 4) return gather_words<uint32_t>(cuda, rows_out, image, columns, first, rows);
  gather_words<uint16_t>(cuda, rows_out, image, columns, first, rows);
}

}  // namespace wick
