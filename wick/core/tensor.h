// A tensor: a strided window on shared storage, with a dtype and, if gradients flow to it, an identity.
//
// Copying a Tensor shares its data. Nothing here computes: operations are in wick/ops, files in wick/io.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "wick/core/dtype.h"
#include "wick/core/memory.h"
#include "wick/core/shape.h"

namespace wick {

// A tensor as a backend sees it: plain data, passed by value. Strides count elements.
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape, stride;
  bool constant = false;  // no kernel will write to it again: it may be read while earlier kernels still run

  int rank() const { return shape.rank(); }
  int64_t numel() const { return shape.numel(); }
  int64_t dim(int i) const { return shape[i < 0 ? i + rank() : i]; }
  bool contiguous() const;
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
};

int64_t bytes_of(DType dtype, const Shape& shape);  // of a dense tensor

// Bytes from a view's first element to another, counted in elements: a whole number of blocks, and of rows where the
// type keeps rows.
int64_t byte_offset(const View& view, int64_t elements);

class Tensor {
 public:
  Tensor() = default;  // holds nothing; false in a condition

  static Tensor empty(const Shape& shape, DType dtype = DType::f32, Memory& memory = host_memory());
  // From values, for inputs and small constants.
  static Tensor of(const std::vector<float>& values, const Shape& shape, Memory& memory = host_memory());
  static Tensor of(const std::vector<int64_t>& values, const Shape& shape, Memory& memory = host_memory());

  explicit operator bool() const { return storage_ != nullptr; }
  const Shape& shape() const { return view_.shape; }
  const Shape& stride() const { return view_.stride; }
  int rank() const { return view_.rank(); }
  int64_t dim(int i) const { return view_.dim(i); }  // negative counts from the end
  int64_t numel() const { return view_.numel(); }
  DType dtype() const { return view_.dtype; }
  bool contiguous() const { return view_.contiguous(); }
  Memory& memory() const;
  Backend& backend() const { return memory().backend(); }

  bool is_sole() const { return storage_.use_count() == 1; }  // no other tensor shares its storage

  const View& view() const { return view_; }
  operator const View&() const { return view_; }  // so that an op hands its tensors to the backend as they are
  // Same storage, another window. `offset` counts elements from this tensor's first. Untracked.
  Tensor window(const Shape& shape, const Shape& stride, int64_t offset = 0) const;
  // A contiguous tensor of another type, from `byte` on, of a contiguous tensor of bytes (u8). So several small tensors
  // travel as one.
  Tensor part(int64_t byte, DType dtype, const Shape& shape) const;

  // Host tensors only.
  template <class T>
  T* data() const {
    return view_.as<T>();
  }
  // Both work in any memory, wait for the device and convert any dtype to float.
  float item() const;                    // the one element
  std::vector<float> to_vector() const;  // all elements in row-major order
  // The same values and strides in another memory; untracked if moved.
  Tensor to(Memory& memory) const;

  // Identity for the tape: 0 means that no gradient is wanted. See autograd/tape.h.
  uint64_t id() const { return id_; }
  bool tracked() const { return id_ != 0; }
  Tensor trainable() const;              // the same data with a new identity: a leaf that gets a gradient
  Tensor identified(uint64_t id) const;  // the same data with another tensor's identity, of which they are a copy
  Tensor detached() const;               // the same data without an identity
  Tensor constant() const;               // the same data, to which no kernel will write any more: frozen weights, plans

 private:
  struct Storage;
  std::shared_ptr<Storage> storage_;
  View view_;
  uint64_t id_ = 0;
};

}  // namespace wick
