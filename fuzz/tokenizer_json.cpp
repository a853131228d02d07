#include "tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto model : {wick::TokenizerModel::kBpe, wick::TokenizerModel::kUnigram})
    wick::read_and_run([&] { return wick::parse_tokenizer_json(text, "tokenizer.json", model); });
  return 0;
}
