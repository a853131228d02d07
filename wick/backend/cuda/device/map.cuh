// y = f(x...), element by element. y may be one of the inputs.
#pragma once

#include "wick/backend/cuda/cuda.h"
#include "wick/backend/cuda/device/any_float.cuh"
#include "wick/backend/cuda/device/walk.cuh"

namespace wick {

inline constexpr int kMapThreads = 256;
inline constexpr int kMapPacks = 2;  // a thread's, all loaded before the first is used

template <class T, int N>
struct MapInputs {
  const T* data[N];
};

template <class F>
__device__ __forceinline__ float apply(const F& f, const float (&x)[1]) {
  return f(x[0]);
}
template <class F>
__device__ __forceinline__ float apply(const F& f, const float (&x)[2]) {
  return f(x[0], x[1]);
}

template <class T>
__device__ __forceinline__ Pack<T> load_pack(const T* x, bool broadcast) {
  if (!broadcast) return *reinterpret_cast<const Pack<T>*>(x);
  Pack<T> pack;
#pragma unroll
  for (T& value : pack.value) value = *x;
  return pack;
}

// All of one dtype; y in packs, and each input in packs or with one element for a pack.
template <class F, class T, int N>
__global__ void __launch_bounds__(kMapThreads)
    map_packs(const F f, T* y, const MapInputs<T, N> x, const __grid_constant__ Walk<N + 1> walk) {
  const uint32_t first = blockIdx.x * (kMapThreads * kMapPacks) + threadIdx.x;
  Pack<T> in[kMapPacks][N];
  int64_t at[kMapPacks][N + 1];
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const uint32_t item = first + k * kMapThreads;
    if (item >= walk.count) break;
    walk.offsets(item, at[k]);
#pragma unroll
    for (int n = 0; n < N; ++n) in[k][n] = load_pack(x.data[n] + at[k][n + 1], walk.broadcasts(n + 1));
  }
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    if (first + k * kMapThreads >= walk.count) break;
    Pack<T> out;
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i) {
      float values[N];
#pragma unroll
      for (int n = 0; n < N; ++n) values[n] = to_float(in[k][n].value[i]);
      out.value[i] = from_float<T>(apply(f, values));
    }
    *reinterpret_cast<Pack<T>*>(y + at[k][0]) = out;
  }
}

template <int N>
struct AnyInputs {
  AnyFloats data[N];
};

// Any dtypes and strides.
template <class F, int N>
__global__ void __launch_bounds__(kMapThreads)
    map_elements(const F f, const AnyFloats y, const AnyInputs<N> x, const __grid_constant__ Walk<N + 1> walk) {
  const uint32_t item = blockIdx.x * kMapThreads + threadIdx.x;
  if (item >= walk.count) return;
  int64_t at[N + 1];
  walk.offsets(item, at);
  float values[N];
#pragma unroll
  for (int n = 0; n < N; ++n) values[n] = x.data[n].load(at[n + 1]);
  y.store(at[0], apply(f, values));
}

// views: y, then the inputs.
template <class F, class T, size_t Views>
void launch_map_packs(CudaBackend& cuda, const F& f, const std::array<View, Views>& views,
                      const Walk<int(Views)>& walk) {
  constexpr int N = int(Views) - 1;
  MapInputs<T, N> x;
  for (int n = 0; n < N; ++n) x.data[n] = views[size_t(n) + 1].template as<const T>();
  map_packs<F, T, N><<<blocks_for(walk.count, kMapThreads * kMapPacks), kMapThreads, 0, cuda.stream()>>>(
      f, views[0].template as<T>(), x, walk);
}

template <class F, size_t Views>
void launch_map_elements(CudaBackend& cuda, const F& f, const std::array<View, Views>& views,
                         const Walk<int(Views)>& walk) {
  constexpr int N = int(Views) - 1;
  AnyInputs<N> x;
  for (int n = 0; n < N; ++n) x.data[n] = AnyFloats(views[size_t(n) + 1]);
  map_elements<F, N>
      <<<blocks_for(walk.count, kMapThreads), kMapThreads, 0, cuda.stream()>>>(f, AnyFloats(views[0]), x, walk);
}

template <class F, size_t Views>
void map(CudaBackend& cuda, const char* name, const F& f, const std::array<View, Views>& all) {
  in_pieces(all, [&](const std::array<View, Views>& views) {
    const auto index = memory_order(views);
    const int width = int(16 / size_of(views[0].dtype));
    bool in_packs = packs(index, 0, views[0], width);
    for (int n = 1; n < int(Views); ++n) {
      const View& x = views[size_t(n)];
      in_packs =
          in_packs && x.dtype == views[0].dtype && (index.stride[n][index.rank - 1] == 0 || packs(index, n, x, width));
    }
    if (in_packs)
      dispatch_float(views[0].dtype, [&](auto type) {
        launch_map_packs<F, typename decltype(type)::type>(cuda, f, views, Walk(index, width));
      });
    else
      launch_map_elements(cuda, f, views, Walk(index));
    cuda_launched(name);
  });
}

}  // namespace wick
