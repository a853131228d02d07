// What someone may have meant who wrote a name that is none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace wick {

// The one of `names` that is meant by a `word` which is none of them: the one at the fewest slips of the pen (a
// character too many, too few, another one, two in the wrong order), at most one for every three characters; else the
// first that begins or ends with the word, or the word with it. Empty where none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& names);

// "; did you mean NAME?" for the end of a message, or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);

}  // namespace wick
