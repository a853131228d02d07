#define PCRE2_CODE_UNIT_WIDTH 8
#include "wick/text/unicode.h"

#include <pcre2.h>
#include <utf8proc.h>

#include <cassert>
#include <cstdlib>
#include <memory>
#include <new>

#include "wick/core/error.h"

namespace wick {
namespace {

const utf8proc_uint8_t* bytes(std::string_view text) { return reinterpret_cast<const utf8proc_uint8_t*>(text.data()); }

void append_utf8(std::string& out, utf8proc_int32_t character) {
  utf8proc_uint8_t encoded[4];
  const auto length = utf8proc_encode_char(character, encoded);
  out.append(reinterpret_cast<const char*>(encoded), size_t(length));
}

}  // namespace

size_t invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t character;
    const auto length = utf8proc_iterate(bytes(text) + at, utf8proc_ssize_t(text.size() - at), &character);
    if (length <= 0) return at;
    at += size_t(length);
  }
  return std::string_view::npos;
}

std::string normalize_nfc(std::string_view text) {
  utf8proc_uint8_t* out = nullptr;
  const auto options = utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto length = utf8proc_map(bytes(text), utf8proc_ssize_t(text.size()), &out, options);
  if (length == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  assert(length >= 0);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  return {reinterpret_cast<const char*>(out), size_t(length)};
}

std::string lower_case(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t character;
    at += size_t(utf8proc_iterate(bytes(text) + at, utf8proc_ssize_t(text.size() - at), &character));
    if (character == 0x130)  // the one capital whose lower case is two characters: i and a dot above
      lower += "i\u0307";
    else
      append_utf8(lower, utf8proc_tolower(character));
  }
  return lower;
}

Regex::Regex(const char* pattern) {
  int error;
  PCRE2_SIZE offset;
  code_ = pcre2_compile(PCRE2_SPTR(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  assert(code_ && "patterns are our own");
}

Regex::~Regex() { pcre2_code_free(code_); }

void Regex::each_match(std::string_view text, const std::function<bool(std::string_view)>& found) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(code_, nullptr), &pcre2_match_data_free);
  if (!match) throw std::bad_alloc();
  for (size_t at = 0; at < text.size();) {
    const int count =
        pcre2_match(code_, PCRE2_SPTR(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (count == PCRE2_ERROR_NOMATCH) return;
    check(count > 0, "text: the regular expression engine gave up on it (PCRE2 error {})", count);
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    assert(range[1] > range[0] && "patterns match at least one character");
    if (!found(text.substr(range[0], range[1] - range[0]))) return;
    at = range[1];
  }
}

}  // namespace wick
