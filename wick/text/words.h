// The cutting of text into words before byte-pair encoding.
//
// A tokenizer.json spells its pattern as a regular expression, a GGUF file names it. The few that language models use
// are matched here by hand: in one pass, whatever the text, and no expression from a file is ever run. Letters,
// numbers, marks and case are Unicode 15's (utf8proc), white space is the property of that name, as in Oniguruma, which
// HF tokenizers use; its Unicode 16 knows some 5000 characters more, mostly hieroglyphs.
#pragma once

#include <optional>
#include <string_view>

namespace wick {

enum class WordPattern {
  kGpt2,
  kLlama3,  // also GPT-4's
  kQwen2,   // Llama 3's with one digit a word
  kTekken,  // Mistral's: words also end where lower case turns into upper case
  kClip,    // numbers one by one, and runs of spaces, which CLIP leaves out
  kDigits,  // each number character by itself, the rest whole
  // Those of llama.cpp's "default", one after the other with kGpt2: runs of [\p{P}$+<=>^~|], of \p{N}, and
  // [0-9][0-9][0-9], and the text between them whole.
  kPunctuation,
  kNumbers,
  kThreeDigits,
};

// The pattern that a tokenizer.json spells as this regular expression.
std::optional<WordPattern> word_pattern_of_regex(std::string_view regex);

// The end of the word that starts at `at`; every character is in some word. `text` is valid UTF-8, `at` < its size.
size_t word_end(WordPattern pattern, std::string_view text, size_t at);

}  // namespace wick
