// Patterns on the names of modules, as PEFT's configurations have them (`alpha_pattern`, `rank_pattern`).
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace wick {

// A Python regular expression that fits a name if it fits all of it, or all behind one of its dots: re.match of
// "(.*\.)?(PATTERN)$", which is get_pattern_key of peft/utils/other.py.
//
// It comes from an untrusted file: a pattern that PCRE2 reads otherwise than Python is refused, and so is a match that
// takes too many steps.
class NamePattern {
 public:
  // `where` names file and setting in errors.
  NamePattern(std::string pattern, std::string where);

  bool fits(std::string_view name) const;
  bool is_plain() const { return !regex_; }  // letters, digits, _, - and dots, perhaps behind a ^

 private:
  struct Regex;
  std::string pattern_, where_;
  std::shared_ptr<const Regex> regex_;  // none for a plain one, which is matched by hand
};

}  // namespace wick
