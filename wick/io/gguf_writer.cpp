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

uint64_t aligned(uint64_t offset) { return (offset + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment; }

// Appends a value as it stands in the file.
template <class T>
void put(std::string& out, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    put(out, uint64_t(value.size()));
    out += value;
  } else if constexpr (std::is_same_v<T, GgufArray>) {
    put(out, uint32_t(value.index()));
    std::visit(
        [&]<class A>(const A& values) {
          if constexpr (std::is_same_v<A, std::monostate>) {
            assert(!"an array of arrays");
          } else {
            put(out, uint64_t(values.size()));
            for (size_t i = 0; i < values.size(); ++i) put(out, typename A::value_type(values[i]));
          }
        },
        value);
  } else {
    static_assert(std::is_arithmetic_v<T> && sizeof(bool) == 1);
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
}

// The part of the file before the data.
std::string header_of(const std::filesystem::path& path, const GgufMetadata::Entries& metadata,
                      const std::vector<GgufEntry>& tensors) {
  std::string header(kGgufMagic);
  put(header, kGgufVersion);
  put(header, uint64_t(tensors.size()));
  put(header, uint64_t(metadata.size()));
  for (const auto& [key, value] : metadata) {
    assert(key != kGgufAlignmentKey && "tensors are written aligned to 32");
    put(header, key);
    put(header, uint32_t(value.index()));
    std::visit([&](const auto& v) { put(header, v); }, value);
  }
  uint64_t offset = 0;
  std::set<std::string> names;
  for (const GgufEntry& tensor : tensors) {
    const GgufType* type = std::ranges::find(kGgufTypes, std::optional(tensor.dtype), &GgufType::dtype);
    check(type != std::end(kGgufTypes) && tensor.shape.rank() <= int(kGgufMaxRank) && names.insert(tensor.name).second,
          "{}: cannot write the file: tensor {} is {} {}, or stands twice; GGUF has no such thing", path.string(),
          quote(tensor.name), name_of(tensor.dtype), tensor.shape);
    put(header, tensor.name);
    put(header, uint32_t(tensor.shape.rank()));
    for (int d = tensor.shape.rank(); d-- > 0;) put(header, uint64_t(tensor.shape[d]));
    put(header, type->id);
    put(header, offset);
    offset = aligned(offset + uint64_t(bytes_of(tensor.dtype, tensor.shape.numel())));
  }
  header.resize(size_t(aligned(header.size())), '\0');
  return header;
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
