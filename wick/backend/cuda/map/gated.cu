// Gated activations: one half of a row times a function of the other. Gated sums, whose gate is a row for all of an
// entry's rows.
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/functions.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/map/map.cuh"
#include "wick/backend/cuda/map/rows.cuh"
#include "wick/backend/cuda/norm/tiles.cuh"
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

struct GatedAdd {
  __device__ float operator()(float x, float gate, float h) const { return fmaf(gate, h, x); }
};

// dh = gate * dy, if wanted, and the sums of h * dy over the rows of each chunk, which are finished as those of a
// norm's shift are.
template <class T, class V, int N>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    gated_add_gradient(ChannelSums* chunk_sums, const RowsOf<T> dh, const RowsOf<const T> dy, const RowsOf<const T> h,
                       const RowsOf<const V> gates, const Tiling t) {
  constexpr int kBatch = 2;
  __shared__ TileSums<N> sums;
  const TilePlace at(t, N);
  launch_dependents();
  if (N > 1) prefetch_tile(dy, at), prefetch_tile(h, at);
  wait_for_previous();
  float gate[N] = {}, sum[N] = {};
  if (dh.data && at.turns > 0) load_floats(gate, gates[at.image], at.channel);
  const int64_t row = at.first + at.row, dy_step = t.rows * dy.stride, h_step = t.rows * h.stride,
                dh_step = t.rows * dh.stride;
  const T *dy_from = dy[row] + at.channel, *h_from = h[row] + at.channel;
  T* dh_to = dh[row] + at.channel;
  for (int left = at.turns; left > 0; left -= kBatch) {
    PackBatch<T, N, kBatch> dys, hs;
    dys.load(dy_from, dy_step, left);
    hs.load(h_from, h_step, left);
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (u >= left) break;
      Pack<T, N> out;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float g = element(dys[u], j);
        sum[j] = fmaf(g, element(hs[u], j), sum[j]);
        out.value[j] = from_float<T>(g * gate[j]);
      }
      if (dh.data) store_pack(dh_to + u * dh_step, out);
    }
    dy_from += kBatch * dy_step, h_from += kBatch * h_step, dh_to += kBatch * dh_step;
  }
  sums.add_up(t, at, sum, 0);
  for (int channel = int(threadIdx.x); channel < at.end - at.begin; channel += int(blockDim.x))
    chunk_sums[(at.image * t.chunks + at.chunk) * t.channels + at.begin + channel] = {sums.totals[0][channel], 0};
}

}  // namespace

void CudaBackend::gated_add(View y, View x, View gate, View h) {
  map(*this, "gated_add", GatedAdd(), std::array{y, x, beside_rows(gate, h.shape), h});
}

void CudaBackend::gated_add_backward(View dh, View dgate, View dy, View gate, View h) {
  if (!dgate || dy.numel() == 0) return ComposedBackend::gated_add_backward(dh, dgate, dy, gate, h);
  const DType dtype = common_dtype({dh, dy, h});
  const RowInput gradient(*this, dy, dtype), input(*this, h, dtype);
  const DType gates_dtype = dtype_beside(dtype, {gate});
  const RowInput gates(*this, gate, gates_dtype);
  const RowOutput output(*this, dh, dtype);
  const int64_t width = h.dim(-1), rows = h.numel() / (h.dim(0) * width);
  const bool packs = gradient.packs() && input.packs() && output.packs() && gates.packs();
  dispatch_packs(dtype, gates_dtype, packs, [&]<class T, class V>(Type<T>, Type<V>, auto pack) {
    constexpr int N = pack.value;
    const Tiling t(*this, h.dim(0), rows, width, N);
    const Scratch sums(*this, size_t(t.images * t.chunks * width) * sizeof(ChannelSums));
    launch("gated_add_backward", stream_, overlapped(*this, t.blocks(), t.threads()), gated_add_gradient<T, V, N>,
           sums.as<ChannelSums>(), output.rows<T>(), gradient.rows<const T>(), input.rows<const T>(),
           gates.rows<const V>(), t);
    finish_gradients<V>(*this, {nullptr, nullptr, {}, ImageVectors(dgate)}, sums.as<ChannelSums>(), {}, t);
  });
  output.finish();
}

void CudaBackend::geglu(View y, View x) { forward<GeluGate>(*this, "geglu", y, x); }
void CudaBackend::geglu_backward(View dx, View dy, View x) { backward<GeluGate>(*this, "geglu_backward", dx, dy, x); }

void CudaBackend::swiglu(View y, View x) { forward<SiluGate>(*this, "swiglu", y, x); }
void CudaBackend::swiglu_backward(View dx, View dy, View x) { backward<SiluGate>(*this, "swiglu_backward", dx, dy, x); }

}  // namespace wick
