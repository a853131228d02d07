// Sums over axes. Partial sums cover fixed parts of the input and are added in a fixed order.
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/parallel.h"
#include "wick/backend/cpu/targets.h"
#include "wick/backend/views.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/reduce.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

double SumRow(const float* x, int64_t n) { return sum_of(Same(), n, x); }

// sum[c] += x[r][c] over all rows r.
void SumColumns(double* sum, const float* x, int64_t rows, int64_t row_stride, int64_t columns) {
  constexpr int64_t kRows = 32;  // added in f32 before they go into the double
  HWY_ALIGN float part[hn::MaxLanes(Floats())];
  for (int64_t row = 0; row < rows; row += kRows)
    for_columns(columns, [&](auto at) HWY_ATTR {
      const int64_t end = HWY_MIN(row + kRows, rows);
      FloatVec even = set(0), odd = even;
      for (int64_t r = row; r < end; ++r) {
        prefetch(x + (r + kRows) * row_stride + at.first);
        even = hn::Add(even, at.of(x + r * row_stride));
        std::swap(even, odd);
      }
      hn::Store(hn::Add(even, odd), Floats(), part);
      for (int64_t i = at.first; i < HWY_MIN(at.first + lanes(), columns); ++i) sum[i] += double(part[i - at.first]);
    });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <vector>

namespace wick {

HWY_EXPORT(SumRow);
HWY_EXPORT(SumColumns);

namespace {

// Sums x over its middle axis into y [outer, inner].
void sum_middle(float* y, const float* x, const Middle& m) {
  constexpr int64_t kPart = 1 << 14;     // elements of a partial sum, about
  constexpr int64_t kColumns = 1 << 10;  // and of its columns, at most
  const int64_t columns = std::min(m.inner, kColumns), column_parts = (m.inner + columns - 1) / columns;
  const int64_t rows = std::max(kPart / columns, (m.reduced + 63) / 64), row_parts = (m.reduced + rows - 1) / rows;
  std::vector<double> partial(size_t(m.outer * row_parts * m.inner));
  const int64_t elements = m.outer * m.reduced * m.inner;
  parallel_each(m.outer * row_parts * column_parts, elements, [&](int64_t task) {
    const int64_t column = task % column_parts * columns, part = task / column_parts;
    const int64_t row = part % row_parts * rows, o = part / row_parts;
    const int64_t height = std::min(rows, m.reduced - row), width = std::min(columns, m.inner - column);
    const float* from = x + (o * m.reduced + row) * m.inner + column;
    double* to = partial.data() + part * m.inner + column;
    if (m.inner == 1)
      *to = HWY_DYNAMIC_DISPATCH(SumRow)(from, height);
    else
      HWY_DYNAMIC_DISPATCH(SumColumns)(to, from, height, m.inner, width);
  });
  for (int64_t o = 0; o < m.outer; ++o)
    for (int64_t i = 0; i < m.inner; ++i) {
      double total = 0;
      for (int64_t p = 0; p < row_parts; ++p) total += partial[size_t((o * row_parts + p) * m.inner + i)];
      y[o * m.inner + i] = float(total);
    }
}

}  // namespace

void CpuBackend::sum(View y, View x) {
  if (y.shape == x.shape) return copy(y, x);
  const DenseInput input(x);
  const DenseOutput output(y);
  if (x.numel() == 0) return fill(y, 0);
  // One run of reduced axes at a time; the largest gain comes first, the rest is small.
  Tensor held;
  const float* from = input.data();
  for (Shape shape = x.shape; shape != y.shape;) {
    const Middle m = first_run(shape, y.shape);
    const Tensor next = shape == y.shape ? Tensor() : Tensor::empty(shape);
    float* to = next ? next.data<float>() : output.data();
    sum_middle(to, from, m);
    held = next;
    from = to;
  }
  output.finish();
}

}  // namespace wick
#endif  // HWY_ONCE
