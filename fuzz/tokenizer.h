// Runs a tokenizer of unknown origin: whatever was read must encode and decode without harm.
#pragma once

#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "wick/core/error.h"
#include "wick/text/tokenizer.h"
#include "wick/text/tokenizer_spec.h"
#include "wick/text/unicode.h"

namespace wick {

inline void expect(bool ok) {
  if (!ok) std::abort();
}

// Marks at all bytes of a text change no ids, and are in order.
inline void run_marks(const Tokenizer& tokenizer, std::span<const TextPart> parts) {
  size_t size = 0, before = 0;
  for (const TextPart& part : parts) size += part.text.size();
  std::vector<TextMark> marks(size + 1);
  for (size_t byte = 0; byte <= size; ++byte) marks[byte].byte = byte;
  const auto ids = tokenizer.encode(parts, {.add_special = false}, marks);
  expect(ids == tokenizer.encode(parts, {.add_special = false}));
  for (const TextMark& mark : marks) {
    expect(before <= mark.tokens && mark.end() <= ids.size());
    before = mark.tokens;
  }
  expect(before == ids.size());
}

inline void run_tokenizer(const Tokenizer& tokenizer) {
  for (const char* text :
       {"", " a  b\n", "<s>\u2581x</s>\u00e9\U0001f600", "abcabc 123 \xff\xe2\x82", "\u0301\u0323"}) {
    for (const bool special : {false, true}) {
      const auto ids = tokenizer.encode(text, {.parse_special = special});
      const TextPart part{text, special};
      run_marks(tokenizer, {&part, 1});
      for (int64_t id : ids) expect(id >= 0 && id < tokenizer.size());
      expect(invalid_utf8(tokenizer.decode(ids, {.skip_special = special})) == std::string::npos);
    }
  }
}

// Reads by `parse`, runs, writes as a GGUF's arrays, reads those and runs again. Errors are of one line.
template <class Parse>
void read_and_run(const Parse& parse) {
  try {
    const Tokenizer tokenizer(parse());
    run_tokenizer(tokenizer);
    run_tokenizer(Tokenizer::from_arrays(tokenizer.arrays(), "arrays"));
  } catch (const Error& error) {
    expect(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
}

}  // namespace wick
