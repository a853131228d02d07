// The whole reader: metadata by every getter, the directory, and the load of every tensor, on any bytes. Only Error may
// come out of it.

#include "wick/io/gguf.h"
#include "memory_file.h"

namespace {

using wick::fuzz::attempt;

void ask(const wick::GgufMetadata& metadata, const std::string& key) {
  attempt([&] { metadata.integer(key); });
  attempt([&] { metadata.number(key); });
  attempt([&] { metadata.boolean_or(key, false); });
  attempt([&] { metadata.text(key); });
  attempt([&] { metadata.texts(key); });
  attempt([&] { metadata.numbers(key); });
  attempt([&] { metadata.integers(key); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static wick::fuzz::MemoryFile memory_file;
  memory_file.assign(data, size);
  attempt([&] {
    const auto file = wick::GgufFile::open(memory_file.path());
    for (const auto& [key, value] : file.metadata().entries()) {
      wick::to_string(value);
      ask(file.metadata(), key);
    }
    for (const auto& [name, info] : file.tensors()) attempt([&, &here = name] { wick::fuzz::touch(file.load(here)); });
  });
  return 0;
}
