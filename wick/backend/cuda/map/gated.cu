// Gated activations: one half of a row times a function of the other.
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/functions.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/map/rows.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kThreads = 256;

// Each gate's function, both that and its derivative, and which half of x it takes.
struct GeluGate {
  static constexpr int kGate = 1, kValue = 0;
  __device__ static float act(float x) { return x * normal_distribution(x).cdf; }
  __device__ static float2 act_and_slope(float x) {
    const Normal normal = normal_distribution(x);
    return {x * normal.cdf, fmaf(x, normal.pdf, normal.cdf)};
  }
};

struct SiluGate {
  static constexpr int kGate = 0, kValue = 1;
  __device__ static float act(float x) { return x * sigmoid(x); }
  __device__ static float2 act_and_slope(float x) {
    const float s = sigmoid(x);
    return {x * s, gated_slope(x, s, 1)};
  }
};

// A thread's pack of one of the rows. Blocks along y cover a row, those along x all rows.
struct Place {
  int64_t row;
  int first;
  bool inside;
};
template <int N>
__device__ __forceinline__ Place this_place(int64_t rows, int width) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  const int first = int(blockIdx.y * blockDim.x + threadIdx.x) * N;
  return {row, first, row < rows && first < width};
}

template <class Gate, class T, int N>
__global__ void __launch_bounds__(kThreads) gated(const RowsOf<T> y, const RowsOf<const T> x, int64_t rows, int width) {
  const Place at = this_place<N>(rows, width);
  launch_dependents();
  wait_for_previous();
  if (!at.inside) return;
  const T* const from = x[at.row] + at.first;
  const Pack<T, N> value = load_pack<N>(from + Gate::kValue * width), gate = load_pack<N>(from + Gate::kGate * width);
  Pack<T, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j)
    out.value[j] = from_float<T>(to_float(value.value[j]) * Gate::act(to_float(gate.value[j])));
  store_pack(y[at.row] + at.first, out);
}

template <class Gate, class T, int N>
__global__ void __launch_bounds__(kThreads)
    gated_gradient(const RowsOf<T> dx, const RowsOf<const T> dy, const RowsOf<const T> x, int64_t rows, int width) {
  const Place at = this_place<N>(rows, width);
  if (!at.inside) return;
  const T* const from = x[at.row] + at.first;
  const Pack<T, N> value = load_pack<N>(from + Gate::kValue * width), gate = load_pack<N>(from + Gate::kGate * width);
  const Pack<T, N> gradient = load_pack<N>(dy[at.row] + at.first);
  Pack<T, N> dvalue, dgate;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float g = to_float(gradient.value[j]);
    const float2 a = Gate::act_and_slope(to_float(gate.value[j]));
    dvalue.value[j] = from_float<T>(g * a.x);
    dgate.value[j] = from_float<T>(g * to_float(value.value[j]) * a.y);
  }
  T* const to = dx[at.row] + at.first;
  store_pack(to + Gate::kValue * width, dvalue);
  store_pack(to + Gate::kGate * width, dgate);
}

struct Grid {
  dim3 blocks, threads;

  Grid(int64_t rows, int64_t packs) {
    const int64_t across = ceil_div(packs, kThreads);
    threads.x = unsigned(ceil_div(packs, across * 32) * 32);
    threads.y = kThreads / threads.x;
    blocks = dim3(unsigned(ceil_div(rows, threads.y)), unsigned(ceil_div(packs, threads.x)));
  }
};

template <class Gate>
void forward(CudaBackend& cuda, const char* name, const View& y, const View& x) {
  if (y.numel() == 0) return;
  const DType dtype = common_dtype({x, y});
  const RowInput input(cuda, x, dtype);
  const RowOutput output(cuda, y, dtype);
  const int64_t width = y.dim(-1), rows = y.numel() / width;
  dispatch_packs(dtype, input.packs() && output.packs(), [&]<class T>(Type<T>, auto pack) {
    const Grid grid(rows, width / pack.value);
    launch(name, cuda.stream(), overlapped(cuda, grid.blocks, grid.threads), gated<Gate, T, pack.value>,
           output.rows<T>(), input.rows<const T>(), rows, int(width));
  });
  output.finish();
}

template <class Gate>
void backward(CudaBackend& cuda, const char* name, const View& dx, const View& dy, const View& x) {
  if (dy.numel() == 0) return;
  const DType dtype = common_dtype({dx, dy, x});
  const RowInput gradient(cuda, dy, dtype), input(cuda, x, dtype);
  const RowOutput output(cuda, dx, dtype);
  const int64_t width = dy.dim(-1), rows = dy.numel() / width;
  const bool packs = gradient.packs() && input.packs() && output.packs();
  dispatch_packs(dtype, packs, [&]<class T>(Type<T>, auto pack) {
    const Grid grid(rows, width / pack.value);
    launch(name, cuda.stream(), {grid.blocks, grid.threads}, gated_gradient<Gate, T, pack.value>, output.rows<T>(),
           gradient.rows<const T>(), input.rows<const T>(), rows, int(width));
  });
  output.finish();
}

}  // namespace

void CudaBackend::geglu(View y, View x) { forward<GeluGate>(*this, "geglu", y, x); }
void CudaBackend::geglu_backward(View dx, View dy, View x) { backward<GeluGate>(*this, "geglu_backward", dx, dy, x); }

void CudaBackend::swiglu(View y, View x) { forward<SiluGate>(*this, "swiglu", y, x); }
void CudaBackend::swiglu_backward(View dx, View dy, View x) { backward<SiluGate>(*this, "swiglu_backward", dx, dy, x); }

}  // namespace wick
