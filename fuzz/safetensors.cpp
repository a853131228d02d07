// The whole reader: header, checks and the load of every tensor, on any bytes. Only Error may come out of it.

#include "wick/io/safetensors.h"
#include "memory_file.h"
#include "wick/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static wick::fuzz::MemoryFile memory_file;
  memory_file.assign(data, size);
  try {
    const auto file = wick::SafetensorsFile::open(memory_file.path());
    for (const auto& [name, info] : file.tensors()) {
      try {
        wick::fuzz::touch(file.load(name));
      } catch (const wick::Error&) {  // a dtype that is only listed
      }
    }
  } catch (const wick::Error& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();  // one line, always
  }
  return 0;
}
