// Copies between layouts and dtypes.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "wick/backend/cpu/block_loop.h"
#include "wick/backend/cpu/blocks.h"
#include "wick/backend/cpu/convert.h"
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/core/blocks.h"
#include "wick/core/row_formats.h"

namespace wick {
namespace {

// y[r][c] = x[r][c] over the two innermost axes of a copy; strides count elements.
struct Plane {
  int64_t rows, columns;
  int64_t y_row, y_column, x_row, x_column;
};

constexpr int64_t kChunk = 1 << 14;  // elements of one row that a task copies
constexpr int64_t kTileRows = 16;    // a transposition reads tiles of whole cache lines: 16 floats of each column,
constexpr int64_t kTileColumns = 8;  // and few enough columns for the ways of an L1 set when their stride is 2^n

template <class T>
void fill_row(T* y, T value, int64_t n) {
  constexpr int64_t kPattern = 1024;  // filled once and copied on from the L1 cache
  std::fill_n(y, std::min(n, kPattern), value);
  for (int64_t i = kPattern; i < n; i += kPattern) std::memcpy(y + i, y, size_t(std::min(kPattern, n - i)) * sizeof(T));
}

template <class Y, class X>
void copy_row(Y* y, const X* x, int64_t y_step, int64_t x_step, int64_t n) {
  if (y_step == 1 && x_step == 0) {
    fill_row(y, Y(*x), n);
  } else if (y_step == 1 && x_step == 1) {
    if constexpr (std::is_same_v<X, Y>)
      std::memcpy(y, x, size_t(n) * sizeof(Y));
    else
      std::copy_n(x, n, y);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i * y_step] = Y(x[i * x_step]);
  }
}

template <class Y, class X>
void copy_plane(Y* y, const X* x, const Plane& p) {
  const bool transposed = p.x_row == 1 && p.x_column != 1 && p.x_column != 0;
  const int64_t tile = transposed ? kTileColumns : p.columns;
  for (int64_t column = 0; column < p.columns; column += tile)
    for (int64_t row = 0; row < p.rows; ++row)
      copy_row(y + row * p.y_row + column * p.y_column, x + row * p.x_row + column * p.x_column, p.y_column, p.x_column,
               std::min(tile, p.columns - column));
}

// Swaps axes so that the second innermost is the one along which x is dense.
void bring_dense_axis_inward(MergedAxes& axes) {
  const int inner = axes.rank - 1;
  if (axes.stride[1][size_t(inner)] <= 1) return;
  for (int axis = 0; axis < inner; ++axis) {
    if (axes.stride[1][size_t(axis)] != 1) continue;
    std::swap(axes.shape[size_t(axis)], axes.shape[size_t(inner - 1)]);
    for (auto& stride : axes.stride) std::swap(stride[size_t(axis)], stride[size_t(inner - 1)]);
  }
}

template <class Y, class X>
void copy_elements(const View& y, const View& x) {
  const View views[] = {y, x};
  MergedAxes axes(views, 2);
  bring_dense_axis_inward(axes);
  const size_t inner = size_t(axes.rank - 1), outer = inner - 1;
  const int64_t rows = axes.shape[outer], columns = axes.shape[inner], elements = y.numel();
  if (elements == 0) return;
  const int64_t row_step = std::min(rows, std::max(kTileRows, kChunk / columns / kTileRows * kTileRows));
  const int64_t column_step = std::min(columns, kChunk);
  const int64_t row_parts = (rows + row_step - 1) / row_step, column_parts = (columns + column_step - 1) / column_step;
  const auto& sy = axes.stride[0];
  const auto& sx = axes.stride[1];
  parallel_each(elements / (rows * columns) * row_parts * column_parts, elements, [&](int64_t task) {
    const int64_t column = task % column_parts * column_step, row = task / column_parts % row_parts * row_step;
    Y* to = y.as<Y>() + row * sy[outer] + column * sy[inner];
    const X* from = x.as<X>() + row * sx[outer] + column * sx[inner];
    int64_t rest = task / column_parts / row_parts;
    for (size_t axis = outer; axis-- > 0; rest /= axes.shape[axis]) {
      to += rest % axes.shape[axis] * sy[axis];
      from += rest % axes.shape[axis] * sx[axis];
    }
    const int64_t height = std::min(row_step, rows - row), width = std::min(column_step, columns - column);
    for (int64_t r = 0; r < height; r += kTileRows) {
      const Plane tile{std::min(kTileRows, height - r), width, sy[outer], sy[inner], sx[outer], sx[inner]};
      copy_plane(to + r * tile.y_row, from + r * tile.x_row, tile);
    }
  });
}

void copy_same(const View& y, const View& x) {
  switch (size_of(y.dtype)) {
    case 1:
      return copy_elements<uint8_t, uint8_t>(y, x);
    case 2:
      return copy_elements<uint16_t, uint16_t>(y, x);
    case 4:
      return copy_elements<uint32_t, uint32_t>(y, x);
    default:
      return copy_elements<uint64_t, uint64_t>(y, x);
  }
}

void copy_floats(const View& y, const View& x) {
  BlockLoop({y}, {x}).run(
      [](const BlockLoop::Pointers& p, int64_t n, int64_t) { std::memcpy(p[0], p[1], size_t(n) * sizeof(float)); });
}

// Calls f(a number of the type) for an integer dtype.
template <class F>
void with_integer(DType dtype, const F& f) {
  if (dtype == DType::i32) return f(int32_t());
  if (dtype == DType::i64) return f(int64_t());
  f(uint8_t());
}

// Converting while transposing would miss the cache at each element.
bool transposes(const View& y, const View& x) {
  const View views[] = {y, x};
  const MergedAxes axes(views, 2);
  return std::abs(axes.stride[1][size_t(axes.rank - 1)]) > 1;
}

// Calls f(row of y, row of x) for all rows, which both lie dense, on all threads.
template <class F>
void for_rows(const View& y, const View& x, const F& f) {
  for (const View* v : {&y, &x})
    check(v->stride.back() == 1, "{} of shape {} can be read and written along its rows only",
          name_of(is_quantized(v->dtype) ? v->dtype : (v == &y ? x : y).dtype), v->shape);
  const auto row = [](const View& v, int64_t index) {
    int64_t offset = 0;
    for (int d = v.rank() - 2; d >= 0; index /= v.shape[d], --d) offset += index % v.shape[d] * v.stride[d];
    return v.as<char>() + byte_offset(v, offset);
  };
  const int64_t rows = x.numel() / std::max<int64_t>(x.shape.back(), 1);
  parallel_each(rows, x.numel(), [&](int64_t i) { f(row(y, i), row(x, i)); });
}

// Rows of nf4_double share numbers, so that all are quantised at once.
void quantize_nested(const View& y, const float* x) {
  check(y.rank() == 2 && y.contiguous(), "{} of shape {} is quantised whole, not in parts", name_of(y.dtype), y.shape);
  quantize_rows(y.data, y.dtype, x, y.shape[0], y.shape[1]);
}

void copy_quantized(const View& y, const View& x) {
  const int64_t width = x.shape.back();
  if (y.dtype == x.dtype) {
    const size_t bytes = size_t(row_bytes(x.dtype, width));
    return for_rows(y, x, [=](char* to, const char* from) { std::memcpy(to, from, bytes); });
  }
  if (is_quantized(y.dtype)) {
    const DenseInput dense(x);
    if (y.dtype == DType::nf4_double) return quantize_nested(y, dense.data());
    return for_rows(y, contiguous_view(const_cast<float*>(dense.data()), x.shape), [&](char* to, const char* from) {
      if (has_row_format(y.dtype))
        quantize_rows(to, y.dtype, reinterpret_cast<const float*>(from), 1, width);
      else
        quantize_blocks(to, y.dtype, reinterpret_cast<const float*>(from), width);
    });
  }
  const DenseOutput dense(y);
  for_rows(contiguous_view(dense.data(), y.shape), x,
           [&](char* to, const char* from) { decode_blocks(reinterpret_cast<float*>(to), from, x.dtype, width); });
  dense.finish();
}

}  // namespace

void CpuBackend::copy(View y, View x) {
  if (is_quantized(y.dtype) || is_quantized(x.dtype)) return copy_quantized(y, x);
  assert(y.shape == x.shape && is_float(y.dtype) == is_float(x.dtype));
  if (y.dtype == x.dtype) return copy_same(y, x);
  if (is_float(y.dtype)) {
    if (!transposes(y, x)) return copy_floats(y, x);
    const Tensor moved = Tensor::empty(y.shape, x.dtype);
    copy_same(moved, x);
    return copy_floats(y, moved);
  }
  with_integer(y.dtype, [&](auto to) {
    with_integer(x.dtype, [&](auto from) { copy_elements<decltype(to), decltype(from)>(y, x); });
  });
}

void CpuBackend::fill(View y, float value) {
  check(!is_quantized(y.dtype), "fill: {} is not filled", name_of(y.dtype));
  alignas(8) std::array<char, 8> element{};
  if (is_float(y.dtype))
    store_floats(element.data(), y.dtype, &value, 1);
  else
    with_integer(y.dtype, [&](auto integer) {
      integer = decltype(integer)(value);
      std::memcpy(element.data(), &integer, sizeof integer);
    });
  View x{element.data(), y.dtype, y.shape, y.stride};
  std::fill(x.stride.begin(), x.stride.end(), 0);
  copy_same(y, x);
}

}  // namespace wick
