#include "tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  wick::read_and_run([&] { return wick::parse_tokenizer_json(text, "tokenizer.json"); });
  return 0;
}
