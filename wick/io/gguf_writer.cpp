#include <algorithm>
#include <cassert>
#include <set>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/io/gguf.h"
#include "wick/io/gguf_format.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

const GgufType* find_type(DType dtype) {
  const auto* found = std::ranges::find(kGgufTypes, std::optional<DType>(dtype), &GgufType::dtype);
  return found == std::end(kGgufTypes) ? nullptr : found;
}

uint64_t aligned(uint64_t offset) { return (offset + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment; }

// The part of the file before the data.
class Header {
 public:
  template <class T>
  void number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void string(const std::string& value) {
    number(uint64_t(value.size()));
    text_ += value;
  }
  template <class T>
  void one(const T& value) {
    if constexpr (std::is_same_v<T, std::string>)
      string(value);
    else if constexpr (std::is_same_v<T, bool>)
      number(uint8_t(value));
    else
      number(value);
  }
  void one(const GgufArray& array) {
    number(uint32_t(array.index()));
    std::visit(
        [&]<class A>(const A& values) {
          if constexpr (std::is_same_v<A, std::monostate>) {
            assert(!"an array of arrays");
          } else {
            number(uint64_t(values.size()));
            for (size_t i = 0; i < values.size(); ++i) one(typename A::value_type(values[i]));
          }
        },
        array);
  }
  void magic() { text_ += kGgufMagic; }
  std::string finish() {
    text_.resize(size_t(aligned(text_.size())), '\0');
    return std::move(text_);
  }

 private:
  std::string text_;
};

std::string header_of(const std::filesystem::path& path, const GgufMetadata::Entries& metadata,
                      const std::vector<GgufEntry>& tensors) {
  Header header;
  header.magic();
  header.number(kGgufVersion);
  header.number(uint64_t(tensors.size()));
  header.number(uint64_t(metadata.size()));
  for (const auto& [key, value] : metadata) {
    assert(key != kGgufAlignmentKey && "tensors are written aligned to 32");
    header.string(key);
    header.number(uint32_t(value.index()));
    std::visit([&](const auto& v) { header.one(v); }, value);
  }
  uint64_t offset = 0;
  std::set<std::string> names;
  for (const GgufEntry& tensor : tensors) {
    const GgufType* type = find_type(tensor.dtype);
    check(type && tensor.shape.rank() <= int(kGgufMaxRank) && names.insert(tensor.name).second,
          "{}: cannot write the file: tensor {} is {} {}, or stands twice; GGUF has no such thing", path.string(),
          quote(tensor.name), name_of(tensor.dtype), tensor.shape);
    header.string(tensor.name);
    header.number(uint32_t(tensor.shape.rank()));
    for (int d = tensor.shape.rank(); d-- > 0;) header.number(uint64_t(tensor.shape[d]));
    header.number(type->id);
    header.number(offset);
    offset = aligned(offset + uint64_t(bytes_of(tensor.dtype, tensor.shape.numel())));
  }
  return header.finish();
}

}  // namespace

void save_gguf(const std::filesystem::path& path, const GgufMetadata::Entries& metadata,
               const std::vector<GgufEntry>& tensors) {
  AtomicFile file(path);
  file.write(header_of(path, metadata, tensors));
  for (const GgufEntry& entry : tensors) {
    const Tensor tensor = entry.make().to(host_memory());
    assert(tensor.dtype() == entry.dtype && tensor.shape() == entry.shape && tensor.contiguous());
    const auto bytes = uint64_t(bytes_of(entry.dtype, entry.shape.numel()));
    file.write(tensor.data<char>(), size_t(bytes));
    file.write(std::string(size_t(aligned(bytes) - bytes), '\0'));
  }
  file.commit();
}

}  // namespace wick
