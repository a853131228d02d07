// Working memory of the kernels, and views brought into the layout and dtype that a kernel wants: in place where they
// already are so, else through a copy. All of it is ordered by the stream.
#pragma once

#include <memory>
#include <optional>

#include "wick/backend/cuda/cuda.h"
#include "wick/backend/views.h"

namespace wick {
inline namespace on_device {  // the CPU has classes of these names, and a program may hold both

// Uninitialised memory from the pool, given back at the end of the scope.
class Scratch {
 public:
  Scratch() = default;
  Scratch(CudaBackend& cuda, size_t bytes) : data_(cuda.memory().allocate(bytes), Release{&cuda.memory(), bytes}) {}

  template <class T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }

 private:
  struct Release {
    Memory* memory;
    size_t bytes;
    void operator()(void* data) const noexcept { memory->release(data, bytes); }
  };
  std::unique_ptr<void, Release> data_;
};

// A view as it lies, or a contiguous one in memory of its own.
class Held {
 public:
  explicit Held(const View& view) : view_(view) {}
  Held(CudaBackend& cuda, DType dtype, const Shape& shape)
      : memory_(cuda, size_t(shape.numel()) * size_of(dtype)),
        view_(contiguous_view(memory_.as<void>(), dtype, shape)) {}
  const View& view() const { return view_; }
  bool is_own() const { return memory_.as<void>() != nullptr; }

 private:
  Scratch memory_;
  View view_;
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
  DenseInput(CudaBackend& cuda, const View& view, DType dtype) : held_(view) {
    if (!view || (view.contiguous() && view.dtype == dtype)) return;
    held_ = Held(cuda, dtype, view.shape);
    cuda.copy(held_.view(), view);
  }
  DenseInput(CudaBackend& cuda, const View& view) : DenseInput(cuda, view, view.dtype) {}
  const View& view() const { return held_.view(); }
  template <class T>
  const T* as() const {
    return view().as<const T>();
  }

 private:
  Held held_;
};

// A contiguous output of a given dtype; finish() once the kernels that write it are launched. load() first where they
// add to its contents.
class DenseOutput {
 public:
  DenseOutput(CudaBackend& cuda, const View& view, DType dtype) : cuda_(cuda), target_(view), held_(view) {
    if (view && !(view.contiguous() && view.dtype == dtype)) held_ = Held(cuda, dtype, view.shape);
  }
  DenseOutput(CudaBackend& cuda, const View& view) : DenseOutput(cuda, view, view.dtype) {}
  const View& view() const { return held_.view(); }
  template <class T>
  T* as() const {
    return view().as<T>();
  }
  void load() const {
    if (held_.is_own()) cuda_.copy(view(), target_);
  }
  void finish() const {
    if (held_.is_own()) cuda_.copy(target_, view());
  }

 private:
  CudaBackend& cuda_;
  View target_;
  Held held_;
};

}  // namespace on_device
}  // namespace wick
