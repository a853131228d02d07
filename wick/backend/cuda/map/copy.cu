// Copies between layouts and dtypes.
#include <bit>
#include <cassert>
#include <deque>
#include <map>
#include <optional>

#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/linear/blocks.h"
#include "wick/backend/cuda/map/map.cuh"
#include "wick/backend/cuda/map/slots.cuh"
#include "wick/backend/cuda/runtime/dense.h"
#include "wick/backend/cuda/runtime/dispatch.cuh"

namespace wick {
namespace {

constexpr int kThreads = 256;
constexpr int kUnits = 4;  // a thread's, all loaded before the first is stored
constexpr int kTile = 32, kTileRows = 8;

struct Same {
  __device__ float operator()(float x) const { return x; }
};

template <class Y, class X>
__device__ __forceinline__ Y converted(X x) {
  if constexpr (std::is_same_v<Y, X>)
    return x;
  else
    return from_float<Y>(to_float(x));
}

// ---- bytes as they are, in units of 1 to 16 bytes

template <class U>
__global__ void __launch_bounds__(kThreads) copy_units(U* y, const U* x, const __grid_constant__ Walk<2> walk) {
  const uint32_t first = blockIdx.x * (kThreads * kUnits) + threadIdx.x;
  U unit[kUnits];
  int64_t at[kUnits][2];
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    if (first + k * kThreads >= walk.count) break;
    walk.offsets(first + k * kThreads, at[k]);
    unit[k] = x[at[k][1]];
  }
#pragma unroll
  for (int k = 0; k < kUnits; ++k)
    if (first + k * kThreads < walk.count) y[at[k][0]] = unit[k];
}

template <class U>
__global__ void __launch_bounds__(kThreads) fill_units(U* y, const U unit, const __grid_constant__ Walk<1> walk) {
  const uint32_t first = blockIdx.x * (kThreads * kUnits) + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    if (first + k * kThreads >= walk.count) break;
    int64_t at[1];
    walk.offsets(first + k * kThreads, at);
    y[at[0]] = unit;
  }
}

// The widest unit that all views can be moved in. `index` then counts such units.
template <size_t N>
int widen(StridedIndex<int(N)>& index, const std::array<View, N>& views) {
  const int size = int(size_of(views[0].dtype));
  int width = 16 / size;
  const auto fits = [&] {
    for (size_t n = 0; n < N; ++n)
      if (!packs(index, int(n), views[n], width)) return false;
    return true;
  };
  while (width > 1 && !fits()) width /= 2;
  const int last = index.rank - 1;
  index.shape[last] /= width;
  for (auto& stride : index.stride)
    for (int d = 0; d < last; ++d) stride[d] /= width;
  return width * size;
}

// Calls f(Type<unsigned integer>{}) with the type of that many bytes.
template <class F>
void dispatch_unit(int bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f(Type<uint8_t>{});
    case 2:
      return f(Type<uint16_t>{});
    case 4:
      return f(Type<uint32_t>{});
    case 8:
      return f(Type<uint64_t>{});
    default:
      return f(Type<uint4>{});
  }
}

// ---- floats of another dtype, in packs

template <class Y, class X>
inline constexpr int kConvertWidth = int(16 / std::max(sizeof(Y), sizeof(X)));

template <class Y, class X>
__global__ void __launch_bounds__(kThreads) convert_packs(Y* y, const X* x, const __grid_constant__ Walk<2> walk) {
  constexpr int kWidth = kConvertWidth<Y, X>;
  const uint32_t first = blockIdx.x * (kThreads * kUnits) + threadIdx.x;
  Pack<X, kWidth> in[kUnits];
  int64_t at[kUnits][2];
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    if (first + k * kThreads >= walk.count) break;
    walk.offsets(first + k * kThreads, at[k]);
    in[k] = *reinterpret_cast<const Pack<X, kWidth>*>(x + at[k][1]);
  }
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    if (first + k * kThreads >= walk.count) break;
    Pack<Y, kWidth> out;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out.value[i] = converted<Y>(in[k].value[i]);
    *reinterpret_cast<Pack<Y, kWidth>*>(y + at[k][0]) = out;
  }
}

// Calls f(Type<Y>{}, Type<X>{}) with the two float types, which differ.
template <class F>
void dispatch_conversion(DType y, DType x, F&& f) {
  dispatch_float(y, [&](auto to) {
    dispatch_float(x, [&](auto from) {
      if constexpr (!std::is_same_v<decltype(to), decltype(from)>) f(to, from);
    });
  });
}

// ---- integers

__device__ __forceinline__ int64_t load_integer(const void* x, DType dtype, int64_t i) {
  if (dtype == DType::i32) return static_cast<const int32_t*>(x)[i];
  if (dtype == DType::i64) return static_cast<const int64_t*>(x)[i];
  return static_cast<const uint8_t*>(x)[i];
}

__global__ void __launch_bounds__(kThreads)
    convert_integers(void* y, DType to, const void* x, DType from, const __grid_constant__ Walk<2> walk) {
  const uint32_t item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= walk.count) return;
  int64_t at[2];
  walk.offsets(item, at);
  const int64_t value = load_integer(x, from, at[1]);
  if (to == DType::i32)
    static_cast<int32_t*>(y)[at[0]] = int32_t(value);
  else if (to == DType::i64)
    static_cast<int64_t*>(y)[at[0]] = value;
  else
    static_cast<uint8_t*>(y)[at[0]] = uint8_t(value);
}

// ---- transpositions, through tiles in shared memory

// y is dense along columns and x along rows; any other dims make a batch of such planes.
struct Planes {
  int64_t rows, columns, y_row, x_column;
  Divisor down, across;  // tiles of a plane
  Walk<2> batch;
};

template <class Y, class X>
__global__ void __launch_bounds__(kTile* kTileRows) transpose(Y* y, const X* x, const __grid_constant__ Planes planes) {
  __shared__ X tile[kTile][kTile + 1];
  const uint32_t line = planes.across.divide(blockIdx.x), plane = planes.down.divide(line);
  const int64_t column = int64_t(blockIdx.x - line * planes.across.divisor) * kTile;
  const int64_t row = int64_t(line - plane * planes.down.divisor) * kTile;
  int64_t at[2];
  planes.batch.offsets(plane, at);
#pragma unroll
  for (int k = threadIdx.y; k < kTile; k += kTileRows)
    if (row + threadIdx.x < planes.rows && column + k < planes.columns)
      tile[k][threadIdx.x] = x[at[1] + row + threadIdx.x + (column + k) * planes.x_column];
  __syncthreads();
#pragma unroll
  for (int k = threadIdx.y; k < kTile; k += kTileRows)
    if (row + k < planes.rows && column + threadIdx.x < planes.columns)
      y[at[0] + (row + k) * planes.y_row + column + threadIdx.x] = converted<Y>(tile[threadIdx.x][k]);
}

// Where both sides of the plane are long enough to fill a good part of a tile.
std::optional<Planes> planes_of(StridedIndex<2> index) {
  const int last = index.rank - 1;
  if (index.stride[0][last] != 1 || index.stride[1][last] <= 1 || index.shape[last] < kTileRows) return {};
  for (int d = 0; d < last; ++d) {
    if (index.stride[1][d] != 1 || index.shape[d] < kTileRows) continue;
    Planes planes{index.shape[d], index.shape[last], index.stride[0][d], index.stride[1][last], {}, {}, {}};
    planes.down = Divisor(ceil_div(planes.rows, kTile));
    planes.across = Divisor(ceil_div(planes.columns, kTile));
    index.shape[d] = index.shape[last] = 1;
    planes.batch = Walk(index);
    return planes;
  }
  return {};
}

template <class Y, class X>
void launch_transpose(cudaStream_t stream, const View& y, const View& x, const Planes& planes) {
  const uint32_t tiles = planes.batch.count * planes.down.divisor * planes.across.divisor;
  launch("copy", stream, {tiles, dim3(kTile, kTileRows)}, transpose<Y, X>, y.as<Y>(), x.as<const X>(), planes);
}

// ---- which of them

using Pair = std::array<View, 2>;

bool dense(const StridedIndex<2>& index) {
  return index.rank == 1 && (index.shape[0] == 1 || (index.stride[0][0] == 1 && index.stride[1][0] == 1));
}

void copy_same(CudaBackend& cuda, const Pair& views, StridedIndex<2> index) {
  const auto& [y, x] = views;
  const int size = int(size_of(y.dtype));
  if (dense(index)) {
    const size_t bytes = size_t(index.shape[0]) * size_t(size);
    return cuda_check(cudaMemcpyAsync(y.data, x.data, bytes, cudaMemcpyDeviceToDevice, cuda.stream()), "copy");
  }
  if (const auto planes = planes_of(index))
    return dispatch_unit(size,
                         [&]<class U>(Type<U>) { launch_transpose<U, U>(cuda.stream(), views[0], views[1], *planes); });
  dispatch_unit(widen(index, views), [&]<class U>(Type<U>) {
    const Walk walk(index);
    launch("copy", cuda.stream(), {blocks_for(walk.count, kThreads * kUnits), kThreads}, copy_units<U>,
           views[0].as<U>(), views[1].as<const U>(), walk);
  });
}

void copy_floats(CudaBackend& cuda, const Pair& views, const StridedIndex<2>& index) {
  const auto& [y, x] = views;
  const auto planes = planes_of(index);
  const int width = int(16 / std::max(size_of(y.dtype), size_of(x.dtype)));
  if (!planes && !(packs(index, 0, y, width) && packs(index, 1, x, width)))
    return launch_map_elements(cuda, "copy", Same(), views, Walk(index));
  dispatch_conversion(y.dtype, x.dtype, [&]<class Y, class X>(Type<Y>, Type<X>) {
    if (planes) return launch_transpose<Y, X>(cuda.stream(), views[0], views[1], *planes);
    const Walk walk(index, kConvertWidth<Y, X>);
    launch("copy", cuda.stream(), {blocks_for(walk.count, kThreads * kUnits), kThreads}, convert_packs<Y, X>,
           views[0].as<Y>(), views[1].as<const X>(), walk);
  });
}

void copy_integers(CudaBackend& cuda, const Pair& views, const StridedIndex<2>& index) {
  const auto& [y, x] = views;
  const Walk walk(index);
  launch("copy", cuda.stream(), {blocks_for(walk.count, kThreads), kThreads}, convert_integers, y.data, y.dtype, x.data,
         x.dtype, walk);
}

// An element's bits, over and over.
template <class T>
uint4 repeated(T element) {
  std::array<T, sizeof(uint4) / sizeof(T)> all;
  all.fill(element);
  return std::bit_cast<uint4>(all);
}
uint4 repeated_value(DType dtype, float value) {
  switch (dtype) {
    case DType::f32:
      return repeated(value);
    case DType::bf16:
      return repeated(f32_to_bf16(value));
    case DType::f16:
      return repeated(f32_to_f16(value));
    case DType::i32:
      return repeated(int32_t(value));
    case DType::i64:
      return repeated(int64_t(value));
    default:
      return repeated(uint8_t(value));
  }
}

// ---- many tensors at once

struct CopySlot {
  float* y;
  const float* x;
  int64_t numel;
};

template <bool kAdd>
__global__ void __launch_bounds__(kThreads) copy_slots(const __grid_constant__ SlotTable<CopySlot> table) {
  const auto [slot, begin, end] = part_of(table, blockIdx.x);
  const bool fours = (reinterpret_cast<uintptr_t>(slot.y) | reinterpret_cast<uintptr_t>(slot.x)) % sizeof(float4) == 0;
  const int64_t whole = fours ? end - (end - begin) % 4 : begin;
#pragma unroll 4
  for (int64_t i = begin + 4 * threadIdx.x; i < whole; i += 4 * kThreads) {
    float4 v = *reinterpret_cast<const float4*>(slot.x + i);
    float4& y = *reinterpret_cast<float4*>(slot.y + i);
    if (kAdd) v = {y.x + v.x, y.y + v.y, y.z + v.z, y.w + v.w};
    y = v;
  }
  for (int64_t i = whole + threadIdx.x; i < end; i += kThreads) slot.y[i] = kAdd ? slot.y[i] + slot.x[i] : slot.x[i];
}

// Rows of another dtype, or with gaps between them: copies and gradients of factors whose ranks are padded.
struct RowSlot {
  void* y;
  const float* x;
  int64_t numel, y_stride, x_stride;
  uint32_t cols;
};

template <class T>
__global__ void __launch_bounds__(kThreads) copy_rows(const __grid_constant__ SlotTable<RowSlot> table, bool add) {
  const auto [slot, begin, end] = part_of(table, blockIdx.x);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const int64_t row = i / slot.cols, col = i % slot.cols;
    T& y = static_cast<T*>(slot.y)[row * slot.y_stride + col];
    const float x = slot.x[row * slot.x_stride + col];
    y = from_float<T>(add ? to_float(y) + x : x);
  }
}

}  // namespace

void CudaBackend::copy_many(const std::vector<Copied>& all, bool add) {
  std::deque<DenseInput> inputs;
  std::vector<CopySlot> dense;
  std::map<DType, std::vector<RowSlot>> others;
  for (const auto& [y, x] : all) {
    if (x.numel() == 0) continue;
    const std::optional<Rows> y_rows = rows_of(y), x_rows = rows_of(x);
    check(y_rows.has_value(), "copy_many: y is neither contiguous nor rows, with shape {}", y.shape);
    const bool in_rows = x.dtype == DType::f32 && x_rows && !x.contiguous();
    const float* const from = in_rows ? x.as<float>() : inputs.emplace_back(*this, x, DType::f32).as<float>();
    if (y.dtype == DType::f32 && y.contiguous() && !in_rows)
      dense.push_back({y.as<float>(), from, y.numel()});
    else
      others[y.dtype].push_back(
          {y.data, from, y.numel(), y_rows->stride, in_rows ? x_rows->stride : y_rows->cols, uint32_t(y_rows->cols)});
  }
  in_tables(dense, [&](const SlotTable<CopySlot>& table) {
    launch("copy_many", stream_, {table.blocks, kThreads}, add ? copy_slots<true> : copy_slots<false>, table);
  });
  for (const auto& [dtype, slots] : others)
    dispatch_float(dtype, [&, &rows = slots]<class T>(Type<T>) {
      in_tables(rows, [&](const SlotTable<RowSlot>& table) {
        launch("copy_many of rows", stream_, {table.blocks, kThreads}, copy_rows<T>, table, add);
      });
    });
}

void CudaBackend::copy(View to, View from) {
  if (is_quantized(to.dtype) || is_quantized(from.dtype)) return copy_quantized(*this, to, from);
  assert(to.shape == from.shape && is_float(to.dtype) == is_float(from.dtype));
  in_pieces(Pair{to, from}, [&](const Pair& views) {
    const auto index = memory_order(views);
    if (to.dtype == from.dtype)
      copy_same(*this, views, index);
    else if (is_float(to.dtype))
      copy_floats(*this, views, index);
    else
      copy_integers(*this, views, index);
  });
}

void CudaBackend::fill(View to, float value) {
  check(!is_quantized(to.dtype), "fill: {} is not filled", name_of(to.dtype));
  const uint4 bits = repeated_value(to.dtype, value);
  in_pieces(std::array{to}, [&](const std::array<View, 1>& views) {
    auto index = memory_order(views);
    dispatch_unit(widen(index, views), [&]<class U>(Type<U>) {
      const Walk walk(index);
      launch("fill", stream_, {blocks_for(walk.count, kThreads * kUnits), kThreads}, fill_units<U>, views[0].as<U>(),
             reinterpret_cast<const U&>(bits), walk);
    });
  });
}

}  // namespace wick
