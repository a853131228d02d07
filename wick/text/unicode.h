// What tokenizers need of Unicode, over utf8proc and PCRE2.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace wick {

// The offset of the first byte that is not valid UTF-8, or npos.
size_t invalid_utf8(std::string_view text);

// Both expect valid UTF-8.
std::string normalize_nfc(std::string_view text);
std::string lower_case(std::string_view text);  // each character by itself: no final sigma

// A compiled regular expression in which \p{..} and \s are Unicode's.
class Regex {
 public:
  explicit Regex(const char* pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Calls `found` with each match in turn, from the left, until it returns false. `text` is valid UTF-8.
  void each_match(std::string_view text, const std::function<bool(std::string_view)>& found) const;

 private:
  pcre2_real_code_8* code_;
};

}  // namespace wick
