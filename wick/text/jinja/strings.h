// Python's methods of str that filters share with them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wick/text/jinja/machine.h"

namespace wick::jinja {

// Where one text lies in another, or npos: the first place or the last one. Linear, whatever the texts.
size_t find_text(Machine& machine, std::string_view text, std::string_view wanted, bool from_end = false);

enum class Side { left, right, both };
// Without the characters at its sides that `characters` has: spaces if there are none.
std::string_view strip(Machine& machine, std::string_view text, Side side, std::optional<std::string_view> characters);
std::vector<std::string_view> lines_of(Machine& machine, std::string_view text, bool keeps_ends);
String replaced(Machine& machine, const Marked& text, std::string_view old, const Marked& by, int64_t count);
Marked centered(Machine& machine, const Marked& text, int64_t width, const Marked& fill = {" "});
// What becomes of a text by a mapping that keeps the length of ASCII. All other texts are given as a whole or not.
Marked mapped(Machine& machine, const Str& text, std::string (*map)(std::string_view));
// Pieces of a text, as a list of strings.
Value list_of(Machine& machine, const Marked& text, const std::vector<std::string_view>& pieces);
size_t code_points(std::string_view text);

// "%d" % values, and "{}".format(…).
Value format_percent(Machine& machine, const Str& format, const Value& arguments);
Value format_braces(Machine& machine, const Str& format, const Arguments& arguments);
// A value in a format like ">10.2f".
Marked formatted(Machine& machine, const Value& value, const Marked& format);

// json.dumps with its arguments.
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<Marked> indent;
  Marked comma{", "}, colon{": "};
};
// Given as a whole if anything of it is.
Marked to_json(Machine& machine, const Value& value, const JsonStyle& style);

}  // namespace wick::jinja
