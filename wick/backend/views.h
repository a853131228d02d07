// Arithmetic of views: parts, transposes, broadcasts and other shapes of the same elements. Nothing is copied.
#pragma once

#include <optional>

#include "wick/core/tensor.h"

namespace wick {

inline View contiguous_view(void* data, DType dtype, const Shape& shape) {
  return {data, dtype, shape, contiguous_strides(shape)};
}

// Elements [first, first + count) along a dim; negative dims count from the end.
inline View part_of(View v, int dim, int64_t first, int64_t count) {
  if (dim < 0) dim += v.rank();
  v.data = v.as<char>() + byte_offset(v, first * v.stride[dim]);
  v.shape[dim] = count;
  return v;
}

inline View transposed(View v, int a = -2, int b = -1) {
  if (a < 0) a += v.rank();
  if (b < 0) b += v.rank();
  std::swap(v.shape[a], v.shape[b]);
  std::swap(v.stride[a], v.stride[b]);
  return v;
}

// Half 0 or 1 of the last dim.
inline View half_of(const View& v, int which) { return part_of(v, -1, which * v.dim(-1) / 2, v.dim(-1) / 2); }

inline Shape with_last(Shape shape, int64_t extent) {
  shape[shape.rank() - 1] = extent;
  return shape;
}

// Broadcast to `shape` as NumPy does: missing leading dims and dims of extent 1 get stride 0.
inline View expanded(const View& v, const Shape& shape) {
  View wide{v.data, v.dtype, shape, {}, v.constant};
  const int missing = shape.rank() - v.rank();
  for (int d = 0; d < shape.rank(); ++d)
    wide.stride.push_back(d < missing || v.shape[d - missing] == 1 ? 0 : v.stride[d - missing]);
  return wide;
}

inline View last_two_dims(const View& v) {
  return {v.data, v.dtype, {v.dim(-2), v.dim(-1)}, {v.stride[v.rank() - 2], v.stride.back()}, v.constant};
}
// A batch of matrices [..., M, K] broadcast to other leading dims.
inline View with_batch(const View& v, const Shape& batch) {
  const View matrix = last_two_dims(v);
  View wide = expanded(v, [&] {
    Shape shape = batch;
    for (const int64_t extent : matrix.shape) shape.push_back(extent);
    return shape;
  }());
  for (int d = 0; d < 2; ++d) wide.stride[batch.rank() + d] = matrix.stride[d];  // also where the extent is 1
  return wide;
}
// Whether a batch holds one matrix, broadcast.
inline bool same_for_all(const View& v) {
  for (int d = 0; d + 2 < v.rank(); ++d)
    if (v.stride[d] != 0 && v.shape[d] != 1) return false;
  return true;
}

// [..., D] as [rows, D] where one stride walks the leading dims.
inline std::optional<View> flatten_rows(const View& v) {
  int64_t rows = 1, stride = 0;
  for (int d = v.rank() - 2; d >= 0; --d) {
    if (v.shape[d] == 1) continue;
    if (rows == 1) stride = v.stride[d];
    if (rows != 1 && v.stride[d] != rows * stride) return std::nullopt;
    rows *= v.shape[d];
  }
  return View{v.data, v.dtype, {rows, v.dim(-1)}, {stride, v.stride.back()}, v.constant};
}

// A dense view seen as [outer, reduced, inner]: the reduced dims stand together.
struct Middle {
  int64_t outer = 1, reduced = 1, inner = 1;
};
// The first run of dims of `shape` that a sum into `target` reduces. They become 1 in `shape`.
inline Middle first_run(Shape& shape, const Shape& target) {
  Middle m;
  int d = 0;
  while (d < shape.rank() && shape[d] == target[d]) m.outer *= shape[d++];
  for (; d < shape.rank() && (shape[d] != target[d] || shape[d] == 1); ++d) {
    m.reduced *= shape[d];
    shape[d] = 1;
  }
  while (d < shape.rank()) m.inner *= shape[d++];
  return m;
}

}  // namespace wick
