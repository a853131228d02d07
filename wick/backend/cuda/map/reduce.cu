// Sums over axes, and of squares. Partial sums cover parts of the input that depend on its shape alone, are kept in
// double precision and are added in a fixed order.
#include <algorithm>
#include <deque>

#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/map/slots.cuh"
#include "wick/backend/cuda/map/total.h"
#include "wick/backend/cuda/runtime/any_float.cuh"
#include "wick/backend/cuda/runtime/dense.h"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"
#include "wick/backend/views.h"

namespace wick {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocks = 1024;  // as many as fill a device, about

// Where the sums of a kernel's parts go: number `i` of [outer, parts, inner].
struct Sums {
  double* partial;  // if there are several parts, else straight to
  AnyFloats y;
  __device__ __forceinline__ void put(int64_t i, double sum) const {
    if (partial)
      partial[i] = sum;
    else
      y.store(i, float(sum));
  }
};

// Sums of rows of n elements, each in `parts` parts of `step` elements. A warp or a block sums a part.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    sum_rows(const Sums sums, const T* x, int64_t rows, int64_t n, int64_t parts, int64_t step) {
  const int64_t task = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (task >= rows * parts) return;
  const int64_t row = task / parts, begin = (task - row * parts) * step, end = min(n, begin + step);
  const int64_t whole = end - (end - begin) % kWidth;
  x += row * n;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x * kWidth; i < whole; i += blockDim.x * kWidth) {
    const auto pack = *reinterpret_cast<const Pack<T, kWidth>*>(x + i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum += double(to_float(pack.value[k]));
  }
  if (whole + threadIdx.x < end) sum += double(to_float(x[whole + threadIdx.x]));
  sum = blockDim.x == 32 ? warp_sum(sum) : block_sum(sum);
  if (threadIdx.x == 0) sums.put(task, sum);
}

// x as [outer, reduced, inner], summed over its middle. Threads stand in `lanes` columns of packs, and above each other
// on different rows.
struct Columns {
  int64_t reduced, inner;
  int64_t parts, step;  // of the rows, and rows a part
  int tiles, lanes;     // of the columns, and packs a tile
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) sum_columns(const Sums sums, const T* x, const Columns c) {
  constexpr int kRows = 8;  // added in f32 before they go into the double
  __shared__ double shared[kWidth][kThreads];
  const int height = kThreads / c.lanes, lane = threadIdx.x % c.lanes, above = threadIdx.x / c.lanes;
  const int64_t task = blockIdx.x / c.tiles, outer = task / c.parts;
  const int64_t column = ((blockIdx.x - task * c.tiles) * c.lanes + lane) * kWidth;
  const int64_t begin = (task - outer * c.parts) * c.step, end = min(c.reduced, begin + c.step);
  const bool inside = above < height && column < c.inner;
  x += outer * c.reduced * c.inner + column;

  double sum[kWidth] = {};
  for (int64_t row = begin + above; inside && row < end; row += kRows * height) {
    Pack<T, kWidth> packs[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (row + r * height < end)
        packs[r] = *reinterpret_cast<const Pack<T, kWidth>*>(x + (row + r * height) * c.inner);
    float few[kWidth] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        if (row + r * height < end) few[k] += to_float(packs[r].value[k]);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum[k] += double(few[k]);
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) shared[k][threadIdx.x] = sum[k];

  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (above >= half || above + half >= height) continue;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) shared[k][threadIdx.x] += shared[k][threadIdx.x + half * c.lanes];
  }
  if (!inside || above > 0) return;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) sums.put(task * c.inner + column + k, shared[k][threadIdx.x]);
}

// y [outer, inner] = the sum of partial [outer, parts, inner] over its middle.
__global__ void __launch_bounds__(1024)
    sum_parts(const AnyFloats y, const double* partial, int64_t outputs, int64_t parts, int64_t inner) {
  __shared__ double shared[32][33];
  const int64_t i = int64_t(blockIdx.x) * 32 + threadIdx.x, outer = i / inner;
  double sum = 0;
  if (i < outputs)
#pragma unroll 4
    for (int64_t p = threadIdx.y; p < parts; p += 32) sum += partial[(outer * parts + p) * inner + i - outer * inner];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = warp_sum(shared[threadIdx.x][threadIdx.y]);
  const int64_t output = int64_t(blockIdx.x) * 32 + threadIdx.y;
  if (threadIdx.x == 0 && output < outputs) y.store(output, float(sum));
}

__global__ void __launch_bounds__(1024) total(const AnyFloats y, const double* partial, int64_t n, double divisor) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < n; i += 1024) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) y.store(0, float(sum / divisor));
}

// Packs need whole rows of them.
template <class T>
bool in_packs(const View& x, int64_t row, int64_t rows) {
  constexpr int kWidth = Pack<T>::kSize;
  return (row % kWidth == 0 || rows == 1) && aligned(x.data);
}

template <class T, int kWidth>
void launch_rows(CudaBackend& cuda, const View& y, const View& x, int64_t rows, int64_t n) {
  const int64_t wanted = std::clamp(ceil_div(n, 8192), int64_t{1}, std::max<int64_t>(1, kBlocks / rows));
  const int64_t step = ceil_div(ceil_div(n, wanted), kWidth) * kWidth, parts = ceil_div(n, step);
  const Scratch partial(cuda, parts > 1 ? size_t(rows * parts) * sizeof(double) : 0);
  const bool warps = parts == 1 && n <= 2048;
  const dim3 block = warps ? dim3(32, kThreads / 32) : dim3(kThreads);
  const Sums sums{parts > 1 ? partial.as<double>() : nullptr, AnyFloats(y)};
  launch("sum_rows", cuda.stream(), {unsigned(ceil_div(rows * parts, block.y)), block}, sum_rows<T, kWidth>, sums,
         x.as<const T>(), rows, n, parts, step);
  if (parts == 1) return;
  if (rows == 1) return total_of(cuda, y, partial.as<double>(), parts);
  launch("sum_parts", cuda.stream(), {unsigned(ceil_div(rows, 32)), dim3(32, 32)}, sum_parts, sums.y,
         partial.as<double>(), rows, parts, 1);
}

template <class T, int kWidth>
void launch_columns(CudaBackend& cuda, const View& y, const View& x, const Middle& m) {
  constexpr int64_t kLanes = 64, kRowsAThread = 16;
  const int64_t groups = ceil_div(m.inner, kWidth), tiles = ceil_div(groups, kLanes), lanes = ceil_div(groups, tiles);
  const int64_t most = ceil_div(m.reduced, kRowsAThread * (kThreads / lanes));
  const int64_t wanted = std::clamp(kBlocks / std::max<int64_t>(1, tiles * m.outer), int64_t{1}, most);
  const int64_t step = ceil_div(m.reduced, wanted), parts = ceil_div(m.reduced, step), outputs = m.outer * m.inner;
  const Scratch partial(cuda, parts > 1 ? size_t(outputs * parts) * sizeof(double) : 0);
  const Sums sums{parts > 1 ? partial.as<double>() : nullptr, AnyFloats(y)};
  launch("sum_columns", cuda.stream(), {unsigned(m.outer * parts * tiles), kThreads}, sum_columns<T, kWidth>, sums,
         x.as<const T>(), Columns{m.reduced, m.inner, parts, step, int(tiles), int(lanes)});
  if (parts == 1) return;
  launch("sum_parts", cuda.stream(), {unsigned(ceil_div(outputs, 32)), dim3(32, 32)}, sum_parts, sums.y,
         partial.as<double>(), outputs, parts, m.inner);
}

// Sums a dense x over its middle axis into a dense y [outer, inner].
void sum_middle(CudaBackend& cuda, const View& y, const View& x, const Middle& m) {
  dispatch_float(x.dtype, [&]<class T>(Type<T>) {
    constexpr int kWidth = Pack<T>::kSize;
    if (m.inner == 1) {
      if (in_packs<T>(x, m.reduced, m.outer)) return launch_rows<T, kWidth>(cuda, y, x, m.outer, m.reduced);
      return launch_rows<T, 1>(cuda, y, x, m.outer, m.reduced);
    }
    if (in_packs<T>(x, m.inner, m.outer * m.reduced)) return launch_columns<T, kWidth>(cuda, y, x, m);
    launch_columns<T, 1>(cuda, y, x, m);
  });
}

struct SquaresSlot {
  const float* data;
  int64_t numel;
};

// In doubles from the start, so that gradients near the ends of f32's range count.
__global__ void __launch_bounds__(kThreads)
    sum_of_squares_parts(double* partial, const __grid_constant__ SlotTable<SquaresSlot> table) {
  const auto [slot, begin, end] = part_of(table, blockIdx.x);
  const int64_t whole = aligned(slot.data) ? end - (end - begin) % 4 : begin;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = begin + 4 * threadIdx.x; i < whole; i += 4 * kThreads) {
    const float4 x = *reinterpret_cast<const float4*>(slot.data + i);
    sum += double(x.x) * double(x.x) + double(x.y) * double(x.y);
    sum += double(x.z) * double(x.z) + double(x.w) * double(x.w);
  }
  for (int64_t i = whole + threadIdx.x; i < end; i += kThreads) sum += double(slot.data[i]) * double(slot.data[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

}  // namespace

void total_of(CudaBackend& cuda, View y, const double* partial, int64_t n, double divisor) {
  launch("total", cuda.stream(), {1, 1024}, total, AnyFloats(y), partial, n, divisor);
}

void CudaBackend::sum(View y, View x) {
  if (y.shape == x.shape) return copy(y, x);
  if (x.numel() == 0) return fill(y, 0);
  const DenseInput input(*this, x);
  const DenseOutput output(*this, y);
  // One run of reduced axes at a time; the first brings the largest gain, and its result is small.
  std::deque<Held> held;
  View from = input.view();
  for (Shape shape = x.shape; shape != y.shape;) {
    const Middle m = first_run(shape, y.shape);
    const View to = shape == y.shape ? output.view() : held.emplace_back(*this, DType::f32, shape).view();
    sum_middle(*this, to, from, m);
    from = to;
  }
  output.finish();
}

void CudaBackend::sum_of_squares(View y, const std::vector<View>& tensors) {
  std::deque<DenseInput> inputs;
  std::vector<SquaresSlot> slots;
  int64_t blocks = 0;
  for (const View& tensor : tensors) {
    const View& dense = inputs.emplace_back(*this, tensor, DType::f32).view();
    slots.push_back({dense.as<const float>(), dense.numel()});
    blocks += ceil_div(dense.numel(), kSlotPart);
  }
  const Scratch partial(*this, size_t(blocks) * sizeof(double));
  double* to = partial.as<double>();
  in_tables(slots, [&](const SlotTable<SquaresSlot>& table) {
    launch("sum_of_squares", stream_, {table.blocks, kThreads}, sum_of_squares_parts, to, table);
    to += table.blocks;
  });
  total_of(*this, y, partial.as<double>(), blocks);
}

}  // namespace wick
