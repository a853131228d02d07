// The parser of templates: Jinja 3.1's grammar without what reads other templates (extends, block, include, import).
#pragma once

#include <string_view>

#include "wick/text/jinja/syntax.h"

namespace wick::jinja {

// Throws SyntaxProblem, or Problem for a constant that is too large.
Block parse(std::string_view source);

}  // namespace wick::jinja
