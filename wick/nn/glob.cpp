#include "wick/nn/glob.h"

namespace wick {
namespace {

// Whether `text` fits a pattern in which * stands for any characters. Only the last star may have to take more: the fit
// before it remains.
bool glob(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = pattern.npos, taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

}  // namespace

bool is_targeted_by(std::string_view pattern, std::string_view path) {
  const bool ends =
      path.size() > pattern.size() && path.ends_with(pattern) && path[path.size() - pattern.size() - 1] == '.';
  return glob(pattern, path) || (ends && pattern.find('*') == pattern.npos);
}

}  // namespace wick
