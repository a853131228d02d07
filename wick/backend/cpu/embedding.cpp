// Table look-up. Its gradient adds the rows of one id in the order of their positions.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

#include "wick/backend/cpu/convert.h"
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/parallel.h"
#include "wick/backend/views.h"

namespace wick {
namespace {

std::vector<int64_t> ids_of(const View& ids) {
  const Tensor dense = Tensor::empty(ids.shape, DType::i64);
  cpu_backend().copy(dense, ids);
  return {dense.data<int64_t>(), dense.data<int64_t>() + dense.numel()};
}

}  // namespace

void CpuBackend::embedding(View y, View table, View ids) {
  const std::vector<int64_t> rows = ids_of(ids);
  const int64_t width = table.dim(1), n = int64_t(rows.size());
  const int64_t row_bytes = byte_offset(table, table.stride[0]);
  const DenseOutput output(y);
  parallel_each(n, n * width, [&](int64_t i) {
    assert(rows[size_t(i)] >= 0 && rows[size_t(i)] < table.dim(0));
    load_floats(output.data() + i * width, table.as<char>() + rows[size_t(i)] * row_bytes, table.dtype, width);
  });
  output.finish();
}

void CpuBackend::embedding_backward(View dtable, View dy, View ids) {
  const std::vector<int64_t> rows = ids_of(ids);
  const DenseInput grads(dy);
  const DenseOutput output(dtable);
  const int64_t width = dtable.dim(1), n = int64_t(rows.size());
  std::vector<int64_t> order(rows.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return rows[size_t(a)] < rows[size_t(b)]; });
  // Threads share the table's rows, so that each row is written by one.
  parallel_for(dtable.dim(0), dtable.numel() + n * width, [&](int64_t begin, int64_t end) {
    std::fill(output.data() + begin * width, output.data() + end * width, 0.0f);
    auto next = std::lower_bound(order.begin(), order.end(), begin,
                                 [&](int64_t position, int64_t row) { return rows[size_t(position)] < row; });
    for (; next != order.end() && rows[size_t(*next)] < end; ++next) {
      float* to = output.data() + rows[size_t(*next)] * width;
      const float* from = grads.data() + *next * width;
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) to[d] += from[d];
    }
  });
  output.finish();
}

void CpuBackend::scatter_rows(View y, View x, View rows) {
  for (int64_t b = 0; b < x.dim(0); ++b)
    for (int64_t t = 0; t < x.dim(1); ++t) {
      const int32_t row = rows.as<int32_t>()[b * rows.stride[0] + t * rows.stride[1]];
      assert(row < y.dim(1));
      if (row >= 0) copy(part_of(part_of(y, 0, b, 1), 1, row, 1), part_of(part_of(x, 0, b, 1), 1, t, 1));
    }
}

void CpuBackend::timestep_embedding(View y, View t, float max_period) {
  const DenseInput times(t);
  const DenseOutput output(y);
  const int64_t width = y.dim(1), half = width / 2;
  for (int64_t n = 0; n < t.numel(); ++n)
    for (int64_t i = 0; i < half; ++i) {
      // In float, as the frameworks compute it: models were trained with this rounding of the angle.
      const float frequency = std::exp(-std::log(max_period) * float(i) / float(half));
      const float angle = times.data()[n] * frequency;
      output.data()[n * width + i] = std::cos(angle);
      output.data()[n * width + half + i] = std::sin(angle);
    }
  output.finish();
}

}  // namespace wick
