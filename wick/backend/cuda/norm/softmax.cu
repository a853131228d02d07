// Softmax over rows, which stay in registers between their reductions and their use.
#include "wick/backend/cuda/map/rows.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    softmax_rows(const RowsOf<T> y, const RowsOf<const T> x, int64_t rows, int width) {
  const int64_t row = this_row(rows);
  const HeldRows<T, N, 1> held({x[row]}, width);
  float maximum = -INFINITY;
  held.each([&](int, const Pack<T, N>(&pack)[1]) {
#pragma unroll
    for (int j = 0; j < N; ++j) maximum = fmaxf(maximum, to_float(pack[0].value[j]));
  });
  maximum = row_reduce<Max>(maximum);
  float sum = 0;
  held.each([&](int, const Pack<T, N>(&pack)[1]) {
    float part = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) part += expf(to_float(pack[0].value[j]) - maximum);
    sum += part;
  });
  const float scale = 1 / row_reduce<Sum>(sum);
  T* const to = y[row];
  held.each([&](int first, const Pack<T, N>(&pack)[1]) {
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.value[j] = from_float<T>(expf(to_float(pack[0].value[j]) - maximum) * scale);
    store_pack(to + first, out);
  });
}

// dx = y * (dy - sum(dy * y))
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    softmax_gradient(const RowsOf<T> dx, const RowsOf<const T> dy, const RowsOf<const T> y, int64_t rows, int width) {
  const int64_t row = this_row(rows);
  const HeldRows<T, N, 2> held({dy[row], y[row]}, width);
  float sum = 0;
  held.each([&](int, const Pack<T, N>(&packs)[2]) {
    float part = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) part = fmaf(to_float(packs[0].value[j]), to_float(packs[1].value[j]), part);
    sum += part;
  });
  sum = row_reduce<Sum>(sum);
  T* const to = dx[row];
  held.each([&](int first, const Pack<T, N>(&packs)[2]) {
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j)
      out.value[j] = from_float<T>(to_float(packs[1].value[j]) * (to_float(packs[0].value[j]) - sum));
    store_pack(to + first, out);
  });
}

}  // namespace

void CudaBackend::softmax(View y, View x) {
  if (x.numel() == 0) return;
  const DType dtype = common_dtype({x, y});
  const RowInput input(*this, x, dtype);
  const RowOutput output(*this, y, dtype);
  const int64_t width = x.dim(-1), rows = x.numel() / width;
  dispatch_packs(dtype, input.packs() && output.packs(), [&](auto type, auto pack) {
    using T = typename decltype(type)::type;
    const dim3 threads = row_threads(width / pack.value);
    launch("softmax", stream_, {dim3(row_blocks(rows, threads)), threads}, softmax_rows<T, pack.value>,
           output.rows<T>(), input.rows<const T>(), rows, int(width));
  });
  output.finish();
}

void CudaBackend::softmax_backward(View dx, View dy, View y) {
  if (y.numel() == 0) return;
  const DType dtype = common_dtype({dx, dy, y});
  const RowInput gradient(*this, dy, dtype), probability(*this, y, dtype);
  const RowOutput output(*this, dx, dtype);
  const int64_t width = y.dim(-1), rows = y.numel() / width;
  const bool packs = gradient.packs() && probability.packs() && output.packs();
  dispatch_packs(dtype, packs, [&](auto type, auto pack) {
    using T = typename decltype(type)::type;
    const dim3 threads = row_threads(width / pack.value);
    launch("softmax_backward", stream_, {dim3(row_blocks(rows, threads)), threads}, softmax_gradient<T, pack.value>,
           output.rows<T>(), gradient.rows<const T>(), probability.rows<const T>(), rows, int(width));
  });
  output.finish();
}

}  // namespace wick
