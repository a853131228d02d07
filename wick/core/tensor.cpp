#include "wick/core/tensor.h"

#include <atomic>
#include <cassert>

#include "wick/core/blocks.h"
#include "wick/core/row_formats.h"

namespace wick {

struct Tensor::Storage {
  Memory& memory;
  size_t bytes;
  Purpose purpose = MemoryScope::current();
  void* data;

  Storage(Memory& m, size_t n) : memory(m), bytes(n), data(m.allocate(n)) { memory.hold(purpose, bytes); }
  ~Storage() {
    memory.let_go(purpose, bytes);
    memory.release(data, bytes);
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
};

bool View::contiguous() const {
  int64_t step = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape[i] != 1 && stride[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

int64_t byte_offset(const View& view, int64_t elements) {
  if (!has_row_format(view.dtype) || elements == 0) return bytes_of(view.dtype, elements);
  const int64_t cols = view.stride[view.rank() - 2];
  check(elements % cols == 0, "{} keeps whole rows of {}: none begins {} elements on", name_of(view.dtype), cols,
        elements);
  return elements / cols * row_bytes(view.dtype, cols);
}

int64_t bytes_of(DType dtype, const Shape& shape) {
  if (!has_row_format(dtype)) return bytes_of(dtype, shape.numel());
  check(shape.rank() >= 2, "tensor: {} keeps rows of matrices, and {} is none", name_of(dtype), shape);
  return shape.back() == 0 ? 0 : shape.numel() / shape.back() * row_bytes(dtype, shape.back());
}

Tensor Tensor::empty(const Shape& shape, DType dtype, Memory& memory) {
  for (int64_t d : shape) check(d >= 0, "tensor: shape {} has a negative extent", shape);
  const int64_t block = block_of(dtype).elements;
  check(block == 1 || (!shape.empty() && shape.back() % block == 0),
        "tensor: {} keeps {} elements of a row in a block, and the rows of {} are not whole blocks", name_of(dtype),
        block, shape);
  Tensor t;
  t.storage_ = std::make_shared<Storage>(memory, size_t(bytes_of(dtype, shape)));
  t.view_ = {t.storage_->data, dtype, shape, contiguous_strides(shape)};
  return t;
}

namespace {

template <class T>
Tensor copy_of(const std::vector<T>& values, const Shape& shape, DType dtype, Memory& memory) {
  check(int64_t(values.size()) == shape.numel(), "tensor: {} values do not fill shape {}", values.size(), shape);
  Tensor t = Tensor::empty(shape, dtype, memory);
  if (!values.empty()) memory.write(t.view().data, values.data(), values.size() * sizeof(T));
  return t;
}

// Elements from the first to the last of a non-empty view.
int64_t spanned_elements(const View& view) {
  int64_t last = 0;
  for (int d = 0; d < view.rank(); ++d) last += (view.shape[d] - 1) * view.stride[d];
  return last + 1;
}

float load_as_float(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(data)[i];
    case DType::bf16:
      return bf16_to_f32(static_cast<const uint16_t*>(data)[i]);
    case DType::f16:
      return f16_to_f32(static_cast<const uint16_t*>(data)[i]);
    case DType::i32:
      return float(static_cast<const int32_t*>(data)[i]);
    case DType::i64:
      return float(static_cast<const int64_t*>(data)[i]);
    case DType::u8:
      return float(static_cast<const uint8_t*>(data)[i]);
    default:
      return block_element(data, dtype, i);
  }
}

uint64_t next_id() {
  static std::atomic<uint64_t> counter{0};
  return ++counter;
}

}  // namespace

Tensor Tensor::of(const std::vector<float>& values, const Shape& shape, Memory& memory) {
  return copy_of(values, shape, DType::f32, memory);
}
Tensor Tensor::of(const std::vector<int64_t>& values, const Shape& shape, Memory& memory) {
  return copy_of(values, shape, DType::i64, memory);
}

Memory& Tensor::memory() const {
  assert(storage_);
  return storage_->memory;
}

Tensor Tensor::window(const Shape& shape, const Shape& stride, int64_t offset) const {
  Tensor t = *this;
  t.view_.shape = shape;
  t.view_.stride = stride;
  t.view_.data = static_cast<char*>(view_.data) + byte_offset(view_, offset);
  t.id_ = 0;
  return t;
}

Tensor Tensor::part(int64_t byte, DType dtype, const Shape& shape) const {
  check(view_.dtype == DType::u8 && contiguous() && byte >= 0 && byte + bytes_of(dtype, shape) <= numel(),
        "tensor: {} {} from byte {} on is no part of {} {}", name_of(dtype), shape, byte, name_of(view_.dtype),
        view_.shape);
  Tensor t = *this;
  t.view_ = {view_.as<char>() + byte, dtype, shape, contiguous_strides(shape)};
  t.id_ = 0;
  return t;
}

float Tensor::item() const {
  check(numel() == 1, "item: the tensor has shape {}, not one element", shape());
  return to_vector().front();
}

Tensor Tensor::to(Memory& other) const {
  if (&memory() == &other) return *this;
  if (numel() == 0) return empty(shape(), dtype(), other);
  // Devices talk through the host. The view's whole span is copied as it lies.
  const Shape span = has_row_format(dtype()) ? shape() : Shape{spanned_elements(view_)};
  check(span.rank() == 1 || contiguous(), "tensor: {} {} is moved whole, not with gaps", name_of(dtype()), shape());
  const auto bytes = size_t(bytes_of(dtype(), span));
  Tensor host = memory().on_host() ? *this : empty(span, dtype());
  if (!memory().on_host()) {
    memory().read(host.view_.data, view_.data, bytes);
    host = host.window(shape(), stride());
  }
  if (other.on_host()) return host;
  Tensor flat = empty(span, dtype(), other);
  other.write(flat.view_.data, host.view_.data, bytes);
  return flat.window(shape(), stride());
}

std::vector<float> Tensor::to_vector() const {
  if (!memory().on_host()) return to(host_memory()).to_vector();
  std::vector<float> values(static_cast<size_t>(numel()));
  const int last = rank() - 1;
  const int64_t width = rank() > 0 ? shape()[last] : 1, step = rank() > 0 ? stride()[last] : 0;
  std::array<int64_t, kMaxRank> index{};  // of the current row
  for (size_t row = 0; row < values.size(); row += size_t(width)) {
    int64_t offset = 0;
    for (int d = 0; d < last; ++d) offset += index[size_t(d)] * stride()[d];
    if (has_row_format(dtype()))
      decode_row(&values[row], view_.as<char>() + byte_offset(view_, offset), dtype(), width);
    else
      for (int64_t i = 0; i < width; ++i)
        values[row + size_t(i)] = load_as_float(view_.data, dtype(), offset + i * step);
    for (int d = last - 1; d >= 0 && ++index[size_t(d)] == shape()[d]; --d) index[size_t(d)] = 0;
  }
  return values;
}

Tensor Tensor::trainable() const {
  check(!is_quantized(dtype()), "tensor: {} holds frozen weights, nothing that is trained", name_of(dtype()));
  Tensor t = *this;
  t.id_ = next_id();
  return t;
}

Tensor Tensor::identified(uint64_t id) const {
  Tensor t = *this;
  t.id_ = id;
  return t;
}

Tensor Tensor::detached() const {
  Tensor t = *this;
  t.id_ = 0;
  return t;
}

Tensor Tensor::constant() const {
  Tensor t = *this;
  t.view_.constant = true;
  return t;
}

}  // namespace wick
