// Up to six dims of a view in device code. Neighbouring dims that one stride walks are merged on the host first.
#pragma once

#include <cstdint>

#include "wick/core/tensor.h"

namespace wick {

// Shapes and strides of N views of one shape, innermost dim last; merged, so that most calls have one or two dims.
template <int N>
struct StridedIndex {
  int rank = 0;
  int64_t shape[kMaxRank];
  int64_t stride[N][kMaxRank];

  __device__ void offsets(int64_t i, int64_t (&out)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) out[n] = 0;
    for (int d = rank - 1; d > 0; --d) {
      const int64_t at = i % shape[d];
      i /= shape[d];
#pragma unroll
      for (int n = 0; n < N; ++n) out[n] += at * stride[n][d];
    }
#pragma unroll
    for (int n = 0; n < N; ++n) out[n] += i * stride[n][0];
  }
};

template <int N>
StridedIndex<N> strided_index(const View* const (&views)[N]) {
  StridedIndex<N> index;
  const Shape& shape = views[0]->shape;
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape[d] == 1) continue;
    bool merges = index.rank > 0;
    for (int n = 0; n < N && merges; ++n) merges = index.stride[n][index.rank - 1] == views[n]->stride[d] * shape[d];
    if (!merges) index.shape[index.rank++] = 1;
    index.shape[index.rank - 1] *= shape[d];
    for (int n = 0; n < N; ++n) index.stride[n][index.rank - 1] = views[n]->stride[d];
  }
  if (index.rank == 0) {
    index.rank = 1;
    index.shape[0] = 1;
    for (int n = 0; n < N; ++n) index.stride[n][0] = 0;
  }
  return index;
}

}  // namespace wick
