// Python's str() and repr() of values, and text that is counted and knows what is given of it while it grows.
#pragma once

#include <string>
#include <string_view>

#include "wick/text/jinja/machine.h"
#include "wick/text/jinja/value.h"

namespace wick::jinja {

class Text {
 public:
  explicit Text(Machine& machine) : machine_(machine) {}

  Text& operator+=(std::string_view text);  // nothing of which is given
  Text& operator+=(const Marked& text) { return add(text, text.bytes); }
  Text& add(const Marked& text, std::string_view part);  // a part of the text's own bytes
  // What is made of a part: given if anything of the part is.
  void add_made(std::string_view made, const Marked& text, std::string_view part);
  void repeat(const Marked& text, size_t count);
  size_t size() const { return text_.bytes.size(); }
  Marked take() { return std::move(text_); }
  String value(bool is_markup = false) { return machine_.string(take(), is_markup); }

 private:
  Machine& machine_;
  Marked text_;
};

void add_str(Machine& machine, Text& out, const Value& value);
void add_repr(Machine& machine, Text& out, const Value& value);
String str(Machine& machine, const Value& value);  // strings are their own
String repr(Machine& machine, const Value& value);
std::string repr_of_float(double value);  // 1.0, 1e+16, inf
std::string repr_of_string(std::string_view text);
// & < > ' and " as HTML's entities.
std::string escape_html(std::string_view text);

}  // namespace wick::jinja
