#define PCRE2_CODE_UNIT_WIDTH 8
#include "wick/nn/name_pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

constexpr size_t kLongest = 1000;       // bytes
constexpr uint32_t kMostSteps = 20000;  // of one match

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

// The characters that a backslash may precede: Python and PCRE2 take these alike.
bool is_common_escape(char c) {
  return (c > ' ' && c < 127 && !is_name_character(c)) || c == '_' || c == '-' ||
         std::string_view("dDwWsSbBAfnrtv").find(c) != std::string_view::npos;
}

bool is_common_group(std::string_view after) {  // `after` follows "("
  if (after.starts_with('*')) return false;
  if (!after.starts_with('?')) return true;
  constexpr std::string_view kKinds[] = {"?:", "?=", "?!", "?<=", "?<!"};
  return std::any_of(std::begin(kKinds), std::end(kKinds), [&](auto kind) { return after.starts_with(kind); });
}

// A part of the pattern that Python would read otherwise than PCRE2, or not at all; empty if there is none.
std::string_view uncommon_part(std::string_view pattern) {
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view after = pattern.substr(i + 1), part = pattern.substr(i, 3);
    if (pattern[i] == '\\') {
      if (after.empty() || !is_common_escape(after.front())) return part;
      ++i;
    } else if (pattern[i] == '('   ? !is_common_group(after)
               : pattern[i] == '[' ? after.starts_with(':') || after.starts_with('.') || after.starts_with('=')
                                   : pattern[i] == '{' && after.starts_with(',')) {
      return part;
    }
  }
  return {};
}

// A "." stands for any character.
bool fits_plainly(std::string_view pattern, std::string_view name) {
  const bool whole = pattern.starts_with('^');
  if (whole) pattern.remove_prefix(1);
  if (name.size() < pattern.size()) return false;
  const size_t before = name.size() - pattern.size();
  if (before > 0 && (whole || name[before - 1] != '.')) return false;
  return std::equal(pattern.begin(), pattern.end(), name.begin() + long(before),
                    [](char p, char c) { return p == '.' || p == c; });
}

}  // namespace

struct NamePattern::Regex {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_match_data* match = nullptr;

  ~Regex() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

NamePattern::NamePattern(std::string pattern, std::string where)
    : pattern_(std::move(pattern)), where_(std::move(where)) {
  check(pattern_.size() <= kLongest, "{}: {} is longer than {} bytes", where_, quote(pattern_), kLongest);
  const std::string_view name = std::string_view(pattern_).substr(pattern_.starts_with('^') ? 1 : 0);
  if (std::all_of(name.begin(), name.end(), [](char c) { return is_name_character(c) || c == '.'; })) return;
  const std::string_view uncommon = uncommon_part(pattern_);
  check(uncommon.empty(), "{}: {} has {}, which Wick does not read in a regular expression", where_, quote(pattern_),
        quote(uncommon));
  const std::string whole = "(.*\\.)?(" + pattern_ + ")$";
  const auto regex = std::make_shared<Regex>();
  int error = 0;
  PCRE2_SIZE at = 0;
  regex->code = pcre2_compile(PCRE2_SPTR(whole.data()), whole.size(), PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
  if (!regex->code) {
    std::array<PCRE2_UCHAR, 120> reason{};
    pcre2_get_error_message(error, reason.data(), reason.size());
    fail("{}: {} is no regular expression: {}", where_, quote(pattern_), reinterpret_cast<const char*>(reason.data()));
  }
  regex->context = pcre2_match_context_create(nullptr);
  regex->match = pcre2_match_data_create_from_pattern(regex->code, nullptr);
  if (!regex->context || !regex->match) throw std::bad_alloc();
  pcre2_set_match_limit(regex->context, kMostSteps);
  regex_ = regex;
}

bool NamePattern::fits(std::string_view name) const {
  if (is_plain()) return fits_plainly(pattern_, name);
  const int count = pcre2_match(regex_->code, PCRE2_SPTR(name.data()), name.size(), 0, PCRE2_ANCHORED, regex_->match,
                                regex_->context);
  if (count == PCRE2_ERROR_NOMATCH) return false;
  check(count > 0, "{}: {} takes too many steps to hold against {} (PCRE2 error {})", where_, quote(pattern_),
        quote(name), count);
  return true;
}

}  // namespace wick
