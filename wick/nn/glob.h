// Patterns by which users name modules (--targets, --keep-precision).
#pragma once

#include <string_view>

namespace wick {

// Whether a path fits a pattern in which * stands for any characters, dots included. A pattern without a * may also be
// the end of the path, as names in PEFT's target_modules are: "q_proj", "lm_head".
bool is_targeted_by(std::string_view pattern, std::string_view path);

}  // namespace wick
