// Jinja's filters and tests, by name.
#pragma once

#include <string_view>

#include "wick/text/jinja/machine.h"
#include "wick/text/jinja/value.h"

namespace wick::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
// Throw Problem if there is none of that name.
Value apply_filter(Machine& machine, std::string_view name, Value subject, Arguments arguments);
bool apply_test(Machine& machine, std::string_view name, const Value& subject, Arguments arguments);

}  // namespace wick::jinja
