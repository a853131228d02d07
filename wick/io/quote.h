// Names and values that come from files, made fit for a one-line message.
#pragma once

#include <string>
#include <string_view>

namespace wick {

// In double quotes, control characters as \xNN, at most 200 characters of it.
std::string quote(std::string_view text);

}  // namespace wick
