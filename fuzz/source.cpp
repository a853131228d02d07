// Sources around a safetensors file: floats of 8 bits with scales, and bitsandbytes' types, as values and as rows. Only
// Error may come out.

#include "wick/nn/source.h"

#include <vector>

#include "memory_file.h"
#include "wick/core/row_formats.h"

namespace {

using wick::fuzz::attempt;

void read(const wick::StoredTensor& tensor) {
  if (tensor.dtype) attempt([&] { wick::fuzz::touch(tensor.load(wick::host_memory())); });
  if (!tensor.rows) return;
  for (const wick::DType dtype :
       {wick::DType::fp8, wick::DType::fp8_block, wick::DType::int8, wick::DType::nf4, wick::DType::nf4_double})
    if (const wick::Memory::Source rows = tensor.rows(dtype)) {
      std::vector<char> bytes(size_t(wick::bytes_of(dtype, tensor.shape)));
      attempt([&] { rows(bytes.data(), 0, bytes.size()); });
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static wick::fuzz::MemoryFile memory_file;
  memory_file.assign(data, size);
  attempt([&] {
    const wick::TensorSource source = wick::safetensors_source(memory_file.path());
    for (const std::string& name : source.names())
      attempt([&] {
        if (const auto tensor = source.find(name, {})) read(*tensor);
      });
  });
  return 0;
}
