// Walking over views of one shape in kernels: the number of an item becomes element offsets, without a division.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "wick/backend/cuda/device/integers.h"
#include "wick/core/tensor.h"

namespace wick {

// Shapes and strides of N views of one shape, innermost dim last; neighbouring dims that one stride walks are merged,
// so that most calls have one or two dims.
template <int N>
struct StridedIndex {
  int rank = 0;
  int64_t shape[kMaxRank];
  int64_t stride[N][kMaxRank];
};

// Divides numbers below 2^31 by one that the host knows: Granlund and Montgomery, "Division by invariant integers using
// multiplication", 1994.
struct Divisor {
  uint32_t divisor = 1, magic = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(int64_t by) : divisor(uint32_t(by)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    magic = uint32_t((((uint64_t{1} << shift) - divisor) << 32) / divisor + 1);
  }
  __device__ __forceinline__ uint32_t divide(uint32_t n) const { return (__umulhi(n, magic) + n) >> shift; }
};

// Items are elements, or packs of neighbouring elements of the innermost dim.
template <int N>
struct Walk {
  int last = 0;        // the innermost dim
  uint32_t count = 0;  // of items; at most 2^31
  Divisor extent[kMaxRank];
  int64_t stride[N][kMaxRank];  // elements from one item to the next

  Walk() = default;
  explicit Walk(const StridedIndex<N>& index, int width = 1) : last(index.rank - 1), count(1) {
    for (int d = 0; d <= last; ++d) {
      const int items = d == last ? width : 1;
      extent[d] = Divisor(index.shape[d] / items);
      count *= extent[d].divisor;
      for (int n = 0; n < N; ++n) stride[n][d] = index.stride[n][d] * items;
    }
  }

  __device__ __forceinline__ void offsets(uint32_t item, int64_t (&at)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] = 0;
    for (int d = last; d > 0; --d) {
      const uint32_t rest = extent[d].divide(item), i = item - rest * extent[d].divisor;
#pragma unroll
      for (int n = 0; n < N; ++n) at[n] += i * stride[n][d];
      item = rest;
    }
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] += item * stride[n][0];
  }
  // View n has one element for all of an item.
  __host__ __device__ __forceinline__ bool broadcasts(int n) const { return stride[n][last] == 0; }
};

// Calls f with views of at most 2^31 elements that together make up the given ones. Not with empty ones.
template <size_t N, class F>
void in_pieces(std::array<View, N> views, const F& f) {
  const Shape shape = views[0].shape;
  if (shape.numel() == 0) return;
  if (shape.numel() <= int64_t{1} << 31) return f(views);
  const int d = int(std::max_element(shape.begin(), shape.end()) - shape.begin());
  const int64_t half = shape[d] / 2;
  for (View& v : views) v.shape[d] = half;
  in_pieces(views, f);
  for (View& v : views) {
    v.data = v.as<char>() + half * v.stride[d] * int64_t(size_of(v.dtype));
    v.shape[d] = shape[d] - half;
  }
  in_pieces(views, f);
}

// The merged dims of views of one shape, in the order in which the first of them lies in memory.
template <size_t N>
StridedIndex<int(N)> memory_order(std::array<View, N> views) {
  const int rank = views[0].rank();
  for (int end = rank; end > 1; --end)
    for (int d = 1; d < end; ++d)
      if (views[0].stride[d - 1] < views[0].stride[d])
        for (View& v : views) {
          std::swap(v.shape[d - 1], v.shape[d]);
          std::swap(v.stride[d - 1], v.stride[d]);
        }
  StridedIndex<int(N)> index;
  const Shape& shape = views[0].shape;
  for (int d = 0; d < rank; ++d) {
    if (shape[d] == 1) continue;
    bool merges = index.rank > 0;
    for (size_t n = 0; n < N && merges; ++n) merges = index.stride[n][index.rank - 1] == views[n].stride[d] * shape[d];
    if (!merges) index.shape[index.rank++] = 1;
    index.shape[index.rank - 1] *= shape[d];
    for (size_t n = 0; n < N; ++n) index.stride[n][index.rank - 1] = views[n].stride[d];
  }
  if (index.rank == 0) {
    index.rank = 1;
    index.shape[0] = 1;
    for (size_t n = 0; n < N; ++n) index.stride[n][0] = 0;
  }
  return index;
}

// May view n be read and written in packs of `width` elements along the innermost dim?
template <int N>
bool packs(const StridedIndex<N>& index, int n, const View& view, int width) {
  const int last = index.rank - 1;
  if (index.shape[last] % width != 0 || index.stride[n][last] != 1) return false;
  for (int d = 0; d < last; ++d)
    if (index.stride[n][d] % width != 0) return false;
  return reinterpret_cast<uintptr_t>(view.data) % (size_t(width) * size_of(view.dtype)) == 0;
}

inline unsigned blocks_for(uint32_t items, uint32_t items_a_block) {
  return unsigned(ceil_div(int64_t(items), items_a_block));
}

}  // namespace wick
