// Runs a tokenizer of unknown origin: whatever was read must encode and decode without harm.
#pragma once

#include <cstdlib>
#include <string_view>

#include "wick/core/error.h"
#include "wick/text/tokenizer.h"
#include "wick/text/tokenizer_spec.h"
#include "wick/text/unicode.h"

namespace wick {

inline void expect(bool ok) {
  if (!ok) std::abort();
}

inline void run_tokenizer(const Tokenizer& tokenizer) {
  for (const char* text :
       {"", " a  b\n", "<s>\u2581x</s>\u00e9\U0001f600", "abcabc 123 \xff\xe2\x82", "\u0301\u0323"}) {
    for (const bool special : {false, true}) {
      const auto ids = tokenizer.encode(text, {.parse_special = special});
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
