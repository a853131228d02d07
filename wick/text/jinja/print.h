// Python's str() and repr() of values, and text that is counted while it grows.
#pragma once

#include <string>
#include <string_view>

#include "wick/text/jinja/machine.h"
#include "wick/text/jinja/value.h"

namespace wick::jinja {

class Text {
 public:
  explicit Text(Machine& machine) : machine_(machine) {}

  Text& operator+=(std::string_view text);
  void repeat(std::string_view text, size_t count);
  size_t size() const { return text_.size(); }
  std::string take() { return std::move(text_); }
  Value value(bool is_markup = false) { return machine_.string(take(), is_markup); }

 private:
  Machine& machine_;
  std::string text_;
};

void add_str(Machine& machine, Text& out, const Value& value);
void add_repr(Machine& machine, Text& out, const Value& value);
std::string str(Machine& machine, const Value& value);
std::string repr(Machine& machine, const Value& value);
std::string repr_of_float(double value);  // 1.0, 1e+16, inf
std::string repr_of_string(std::string_view text);
// & < > ' and " as HTML's entities.
std::string escape_html(std::string_view text);

}  // namespace wick::jinja
