// Views as matrices in device memory: in place where dtype and strides allow it, else through a copy.
#pragma once

#include <optional>

#include "wick/backend/cuda/runtime/dense.h"

namespace wick {
inline namespace on_device {

// rows x cols with one of its strides 1: element (i, j) lies at data[i * ld + j], or at data[j * ld + i] if transposed.
struct DeviceMatrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0, cols = 0, ld = 1;
  bool transposed = false;

  DeviceMatrix t() const { return {data, dtype, cols, rows, ld, !transposed}; }
  DeviceMatrix col_range(int64_t first, int64_t count) const {
    const int64_t offset = first * (transposed ? ld : 1);
    return {static_cast<char*>(data) + offset * int64_t(size_of(dtype)), dtype, rows, count, ld, transposed};
  }
  View view() const { return {data, dtype, {rows, cols}, transposed ? Shape{1, ld} : Shape{ld, 1}}; }
};

// The last two dims.
inline std::optional<DeviceMatrix> as_matrix(const View& v) {
  const int64_t rows = v.dim(-2), cols = v.dim(-1);
  const int64_t row_step = v.stride[v.rank() - 2], col_step = v.stride[v.rank() - 1];
  if ((cols == 1 || col_step == 1) && (rows == 1 || row_step >= cols))
    return DeviceMatrix{v.data, v.dtype, rows, cols, rows == 1 ? cols : row_step, false};
  if ((rows == 1 || row_step == 1) && (cols == 1 || col_step >= rows))
    return DeviceMatrix{v.data, v.dtype, rows, cols, cols == 1 ? rows : col_step, true};
  return {};
}

// [..., D] as [rows, D].
inline std::optional<DeviceMatrix> as_rows(const View& v) {
  if (v.rank() == 2) return as_matrix(v);
  const auto r = rows_of(v);
  if (!r || (r->rows > 1 && r->stride < r->cols)) return {};
  return DeviceMatrix{v.data, v.dtype, r->rows, r->cols, r->stride, false};
}

inline DeviceMatrix dense_rows(const View& v) {
  const int64_t cols = v.shape.back();
  return {v.data, v.dtype, cols ? v.numel() / cols : 0, cols, cols, false};
}

// [..., D] as a matrix [rows, D] of a given dtype, to read or to write; load() and finish() are DenseOutput's. Empty
// views become empty matrices.
template <class Dense>
class MatrixOf {
 public:
  MatrixOf(CudaBackend& cuda, const View& v, DType dtype) {
    if (!v) return;
    if (const auto direct = as_rows(v); direct && v.dtype == dtype) {
      matrix_ = *direct;
    } else {
      copy_.emplace(cuda, v, dtype);
      matrix_ = dense_rows(copy_->view());
    }
  }
  const DeviceMatrix& operator*() const { return matrix_; }
  const DeviceMatrix* operator->() const { return &matrix_; }
  void load() const {
    if (copy_) copy_->load();
  }
  void finish() const {
    if (copy_) copy_->finish();
  }

 private:
  std::optional<Dense> copy_;
  DeviceMatrix matrix_;
};
using MatrixInput = MatrixOf<DenseInput>;
using MatrixOutput = MatrixOf<DenseOutput>;

}  // namespace on_device
}  // namespace wick
