// Names and values that come from files, made fit for a terminal and for a one-line message.
#pragma once

#include <string>
#include <string_view>

namespace wick {

// Text as it is, but for what a reader would not see as what it is: control characters (an ESC drives the terminal),
// characters without a width of their own, those that turn the direction of others (Unicode's Cc, Cf, Zl, Zp and
// Default_Ignorable_Code_Point), as \xNN of bytes and \u{NNNN} of characters, and bytes that are no UTF-8. Of what is
// shown so nothing changes when it is shown again.
std::string printable(std::string_view name);

// Likewise of running text, in which lines end, and whose scripts and emoji need some of the characters without width:
// only what drives a terminal is shown as an escape.
std::string printable_text(std::string_view text);

// printable() in double quotes, of at most 200 bytes.
std::string quote(std::string_view text);

}  // namespace wick
