// Suggestions for a name that does not exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace wick {

// The name that `word`, which is none of `names`, probably means: the one the fewest typos away (a character too many,
// too few, a wrong one, two swapped), at most one for every three characters; else the first that begins or ends with
// the word, or the word with it. Empty where none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& names);

// "; did you mean NAME?" for the end of a message, or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);

}  // namespace wick
