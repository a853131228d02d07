// Working memory of the kernels, and views brought into the layout and dtype that a kernel wants: in place where they
// already are so, else through a copy. All of it is ordered by the stream.
#pragma once

#include <optional>

#include "wick/backend/cuda/cuda.h"
#include "wick/backend/views.h"

namespace wick {

// Uninitialised memory from the pool, given back at the end of the scope.
class Scratch {
 public:
  Scratch() = default;
  Scratch(CudaBackend& cuda, size_t bytes) : memory_(&cuda.memory()), bytes_(bytes), data_(memory_->allocate(bytes)) {}
  ~Scratch() {
    if (data_) memory_->release(data_, bytes_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Memory* memory_ = nullptr;
  size_t bytes_ = 0;
  void* data_ = nullptr;
};

// The rows of a view as a matrix with contiguous columns; rows is the product of all dims but the last.
// None where the leading dims cannot be walked with one stride.
struct Rows {
  int64_t rows, cols, stride;  // elements from one row to the next
};
inline std::optional<Rows> rows_of(const View& v) {
  if (v.rank() == 0) return Rows{1, 1, 1};
  const int64_t cols = v.dim(-1);
  const auto flat = cols == 1 || v.stride.back() == 1 ? flatten_rows(v) : std::nullopt;
  if (!flat) return {};
  const int64_t rows = flat->shape[0];
  return Rows{rows, cols, rows == 1 ? cols : flat->stride[0]};
}

// A contiguous input of a given dtype. Empty views stay empty.
class DenseInput {
 public:
  DenseInput(CudaBackend& cuda, const View& view, DType dtype) : view_(view) {
    if (!view || (view.contiguous() && view.dtype == dtype)) return;
    scratch_.emplace(cuda, size_t(view.numel()) * size_of(dtype));
    view_ = contiguous_view(scratch_->as<void>(), dtype, view.shape);
    cuda.copy(view_, view);
  }
  DenseInput(CudaBackend& cuda, const View& view) : DenseInput(cuda, view, view.dtype) {}
  const View& view() const { return view_; }
  template <class T>
  const T* as() const {
    return view_.as<const T>();
  }

 private:
  std::optional<Scratch> scratch_;
  View view_;
};

// A contiguous output of a given dtype; finish() once the kernels that write it are launched. load() first where they
// add to its contents.
class DenseOutput {
 public:
  DenseOutput(CudaBackend& cuda, const View& view, DType dtype) : cuda_(cuda), target_(view), view_(view) {
    if (!view || (view.contiguous() && view.dtype == dtype)) return;
    scratch_.emplace(cuda, size_t(view.numel()) * size_of(dtype));
    view_ = contiguous_view(scratch_->as<void>(), dtype, view.shape);
  }
  DenseOutput(CudaBackend& cuda, const View& view) : DenseOutput(cuda, view, view.dtype) {}
  const View& view() const { return view_; }
  template <class T>
  T* as() const {
    return view_.as<T>();
  }
  void load() const {
    if (scratch_) cuda_.copy(view_, target_);
  }
  void finish() const {
    if (scratch_) cuda_.copy(target_, view_);
  }

 private:
  CudaBackend& cuda_;
  std::optional<Scratch> scratch_;
  View target_, view_;
};

}  // namespace wick
