// Names and values that come from files, made fit for a terminal and for a one-line message.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace wick {

// The text with escapes for all that a reader would not see as itself: control characters (an ESC drives the terminal),
// characters without a width of their own or that turn the direction of text (Unicode's Cc, Cf, Zl, Zp and
// Default_Ignorable_Code_Point), and bytes that are not UTF-8. Bytes become \xNN, longer characters \u{NNNN}. A second
// pass changes nothing.
std::string printable(std::string_view name);

// The same for running text, which has lines, and whose scripts and emoji need some characters without width: only
// those that drive a terminal are escaped.
std::string printable_text(std::string_view text);

// printable() of at most 200 bytes, and the same in double quotes.
std::string excerpt(std::string_view text);
std::string quote(std::string_view text);

// "a, b, c, …": the first of several names.
std::string first_few(const std::vector<std::string>& names, size_t few = 3);

}  // namespace wick
