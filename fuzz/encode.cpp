// Any bytes as text, through the small tokenizer of one family: the first byte chooses it, the second cuts the text
// into a part with control tokens and one without.

#include <vector>

#include "tokenizer.h"

namespace {

const wick::Tokenizer& tokenizer_of(uint8_t choice) {
  static const std::vector<wick::Tokenizer> all = [] {
    std::vector<wick::Tokenizer> loaded;
    const std::filesystem::path goldens = std::filesystem::path(WICK_SOURCE_DIR) / "tests/golden/tokenizers";
    for (const char* family : {"llama3", "tekken", "smollm", "qwen3", "llama2", "mistral3"})
      loaded.push_back(wick::Tokenizer::load(goldens / family));
    // And the same by scores.
    loaded.push_back(wick::Tokenizer::from_arrays(loaded.back().arrays(), "arrays"));
    return loaded;
  }();
  return all[choice % all.size()];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const wick::Tokenizer& tokenizer = tokenizer_of(data[0]);
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const size_t cut = std::min<size_t>(data[1], text.size());

  const auto plain = tokenizer.encode(text, {.add_special = false});
  for (int64_t id : plain) wick::expect(!tokenizer.is_control(id));
  const std::string back = tokenizer.decode(plain);
  wick::expect(wick::invalid_utf8(back) == back.npos);
  const bool is_lossless = &tokenizer - &tokenizer_of(0) < 3;  // the first three change nothing
  wick::expect(!is_lossless || back == wick::replace_invalid_utf8(text));

  const std::vector<wick::TextPart> parts{{text.substr(0, cut), true}, {text.substr(cut), false}};
  wick::run_marks(tokenizer, parts);
  const auto ids = tokenizer.encode(parts);
  wick::TokenStream stream(tokenizer, {.skip_special = false});
  std::string streamed;
  for (int64_t id : ids) streamed += stream.push(id);
  wick::expect(streamed + stream.finish() == tokenizer.decode(ids, {.skip_special = false}));
  return 0;
}
