// y = f(x...), element by element. y may be one of the inputs.
#pragma once

#include "wick/backend/cuda/cuda.h"
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/map/walk.cuh"
#include "wick/backend/cuda/runtime/any_float.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {

inline constexpr int kMapThreads = 256;
inline constexpr int kMapPacks = 2;  // a thread's, all loaded before the first is used

template <int N>
struct MapInputs {
  const void* data[N];
  bool f32[N];  // else of y's dtype
  bool alike;   // all are of y's dtype, and none serves a pack with one element
};

template <class F>
__device__ __forceinline__ float apply(const F& f, const float (&x)[1]) {
  return f(x[0]);
}
template <class F>
__device__ __forceinline__ float apply(const F& f, const float (&x)[2]) {
  return f(x[0], x[1]);
}
template <class F>
__device__ __forceinline__ float apply(const F& f, const float (&x)[3]) {
  return f(x[0], x[1], x[2]);
}

// As it lies in memory, so that a thread asks for all it needs before it waits for any: a pack of T, as many f32, or
// one element of either that serves them all.
template <class T>
struct RawPack {
  static constexpr int kSize = Pack<T>::kSize;
  uint4 words[kSize / 4];

  __device__ __forceinline__ void load(const void* data, int64_t at, bool f32, bool broadcast) {
    if (broadcast && f32) {
      words[0].x = static_cast<const uint32_t*>(data)[at];
    } else if (broadcast) {
      *reinterpret_cast<T*>(words) = static_cast<const T*>(data)[at];
    } else if (f32) {
      const auto* const from = reinterpret_cast<const uint4*>(static_cast<const float*>(data) + at);
#pragma unroll
      for (int i = 0; i < kSize / 4; ++i) words[i] = from[i];
    } else {
      words[0] = *reinterpret_cast<const uint4*>(static_cast<const T*>(data) + at);
    }
  }
  __device__ __forceinline__ float element(int i, bool f32) const {
    return f32 ? reinterpret_cast<const float*>(words)[i] : to_float(reinterpret_cast<const T*>(words)[i]);
  }
  // `i` is a constant, so that all stays in registers.
  __device__ __forceinline__ float value(int i, bool f32, bool broadcast) const {
    return broadcast ? element(0, f32) : element(i, f32);
  }
};

// y in packs; each input in as many elements, or one for all of them.
template <class F, class T, int N>
__global__ void __launch_bounds__(kMapThreads)
    map_packs(const F f, T* y, const MapInputs<N> x, const __grid_constant__ Walk<N + 1> walk) {
  const uint32_t first = blockIdx.x * (kMapThreads * kMapPacks) + threadIdx.x;
  launch_dependents();
  wait_for_previous();
  RawPack<T> in[kMapPacks][N];
  int64_t at[kMapPacks][N + 1];
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const uint32_t item = first + k * kMapThreads;
    if (item >= walk.count) break;
    walk.offsets(item, at[k]);
#pragma unroll
    for (int n = 0; n < N; ++n) in[k][n].load(x.data[n], at[k][n + 1], x.f32[n], walk.broadcasts(n + 1));
  }
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    if (first + k * kMapThreads >= walk.count) break;
    Pack<T> out;
    const auto compute = [&](auto alike) {
#pragma unroll
      for (int i = 0; i < Pack<T>::kSize; ++i) {
        float values[N];
#pragma unroll
        for (int n = 0; n < N; ++n)
          values[n] = alike.value ? in[k][n].element(i, false) : in[k][n].value(i, x.f32[n], walk.broadcasts(n + 1));
        out.value[i] = from_float<T>(apply(f, values));
      }
    };
    x.alike ? compute(std::true_type()) : compute(std::false_type());
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
void launch_map_packs(CudaBackend& cuda, const char* name, const F& f, const std::array<View, Views>& views,
                      const Walk<int(Views)>& walk) {
  constexpr int N = int(Views) - 1;
  MapInputs<N> x;
  x.alike = true;
  for (int n = 0; n < N; ++n) {
    const View& view = views[size_t(n) + 1];
    x.data[n] = view.data;
    x.f32[n] = view.dtype == DType::f32;
    x.alike = x.alike && view.dtype == views[0].dtype && !walk.broadcasts(n + 1);
  }
  launch(name, cuda.stream(),
         overlapped(cuda, dim3(blocks_for(walk.count, kMapThreads * kMapPacks)), dim3(kMapThreads)), map_packs<F, T, N>,
         f, views[0].template as<T>(), x, walk);
}

template <class F, size_t Views>
void launch_map_elements(CudaBackend& cuda, const char* name, const F& f, const std::array<View, Views>& views,
                         const Walk<int(Views)>& walk) {
  constexpr int N = int(Views) - 1;
  AnyInputs<N> x;
  for (int n = 0; n < N; ++n) x.data[n] = AnyFloats(views[size_t(n) + 1]);
  launch(name, cuda.stream(), {blocks_for(walk.count, kMapThreads), kMapThreads}, map_elements<F, N>, f,
         AnyFloats(views[0]), x, walk);
}

template <class F, size_t Views>
void map(CudaBackend& cuda, const char* name, const F& f, const std::array<View, Views>& all) {
  in_pieces(all, [&](const std::array<View, Views>& views) {
    const auto index = memory_order(views);
    const int width = int(16 / size_of(views[0].dtype));
    bool in_packs = packs(index, 0, views[0], width);
    for (int n = 1; n < int(Views); ++n) {
      const View& x = views[size_t(n)];
      const bool readable = x.dtype == views[0].dtype || x.dtype == DType::f32;
      in_packs = in_packs && readable && (index.stride[n][index.rank - 1] == 0 || packs(index, n, x, width));
    }
    if (in_packs)
      dispatch_float(views[0].dtype,
                     [&]<class T>(Type<T>) { launch_map_packs<F, T>(cuda, name, f, views, Walk(index, width)); });
    else
      launch_map_elements(cuda, name, f, views, Walk(index));
  });
}

}  // namespace wick
