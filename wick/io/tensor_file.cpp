#include "wick/io/tensor_file.h"

#include <algorithm>

#include "wick/core/error.h"
#include "wick/io/descriptor.h"
#include "wick/io/quote.h"

namespace wick {

// Empty extents count as one in `span`, so that strides of an empty tensor cannot overflow either.
std::optional<Shape> checked_shape(std::span<const uint64_t> extents, uint64_t unit) {
  uint64_t span = unit;
  for (const uint64_t extent : extents)
    if (extent > INT64_MAX || __builtin_mul_overflow(span, std::max<uint64_t>(extent, 1), &span) || span > INT64_MAX)
      return std::nullopt;
  return Shape(extents.begin(), extents.end());
}

TensorFile::TensorFile(const std::filesystem::path& path, const char* advice)
    : path_(path), file_(std::make_shared<FileDescriptor>(path)), advice_(advice) {}

const TensorInfo& TensorFile::info_of(const std::string& name) const {
  const auto found = tensors_.find(name);
  check(found != tensors_.end(), "{}: there is no tensor {} among its {}", path_.string(), quote(name),
        tensors_.size());
  return found->second;
}

void TensorFile::add_part(const TensorFile& more) {
  more_.push_back({more.file_, more.data_});
  for (const auto& [name, info] : more.tensors_) {
    const auto [added, is_new] = tensors_.emplace(name, info);
    check(is_new, "{}: tensor {} is in another part of {} too", more.path_.string(), quote(name), path_.string());
    added->second.part = more_.size();
  }
}

Tensor TensorFile::load(const std::string& name, Memory& memory) const {
  const TensorInfo& info = info_of(name);
  check(info.dtype.has_value(), "{}: tensor {} is {}, which Wick does not compute with; {}", path_.string(),
        quote(name), info.dtype_name, advice_);
  Tensor tensor = Tensor::empty(info.shape, *info.dtype, memory);
  memory.fill({{tensor.view().data, size_t(*info.bytes), bytes(name)}});
  return tensor;
}

Memory::Source TensorFile::bytes(const std::string& name) const {
  const TensorInfo& info = tensors_.at(name);
  const Part part = info.part == 0 ? Part{file_, data_} : more_[info.part - 1];
  return [file = part.file, first = part.data + info.begin, name](void* host, size_t begin, size_t bytes) {
    check(file->read_at(first + begin, host, bytes) == bytes, "{}: tensor {}: the file shrank while it was in use",
          file->path().string(), quote(name));
  };
}

}  // namespace wick
