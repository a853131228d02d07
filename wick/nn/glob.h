// Patterns by which users name modules (--targets, --keep-precision, --lr).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace wick {

// Whether a path fits a pattern in which * stands for any characters, dots included. A pattern without a * may also be
// the end of the path, as names in PEFT's target_modules are: "q_proj", "lm_head".
bool is_targeted_by(std::string_view pattern, std::string_view path);

// A number, and others for modules whose paths fit a pattern: the last that fits decides. A module may have another
// path too, `also`.
template <class T>
struct ByPattern {
  struct Other {
    std::string pattern;
    T value;
  };
  T value{};
  std::vector<Other> others = {};

  ByPattern(T all = {}) : value(all) {}  // NOLINT: mostly one number is meant

  const T* other(std::string_view path, std::string_view also = {}) const {
    const T* found = nullptr;
    for (const Other& o : others)
      if (is_targeted_by(o.pattern, path) || (!also.empty() && is_targeted_by(o.pattern, also))) found = &o.value;
    return found;
  }
  T at(std::string_view path, std::string_view also = {}) const {
    const T* found = other(path, also);
    return found ? *found : value;
  }
};

}  // namespace wick
