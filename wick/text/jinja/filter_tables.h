// The tables of filters, one for each file.
#pragma once

#include <span>
#include <string_view>

#include "wick/text/jinja/arguments.h"

namespace wick::jinja {

struct Filter {
  std::string_view name, parameters;  // of Bound
  Value (*run)(Machine& machine, const Value& subject, const Bound& given) = nullptr;
  Value (*run_with_any)(Machine& machine, const Value& subject, Arguments arguments) = nullptr;  // of any number
};

std::span<const Filter> sequence_filters();
std::span<const Filter> selecting_filters();
std::span<const Filter> text_filters();
std::span<const Filter> number_filters();

// The text of a value that may be none: a filter on text takes all values by their text.
String soft_text(Machine& machine, const Value& value);
bool is_markup(const Value& value);
// Small letters for filters that do not tell case apart.
Value without_case(Machine& machine, const Value& value);

// An attribute by which items are sorted or chosen: "a.b.0", or none.
class AttributePath {
 public:
  AttributePath(Machine& machine, const Value& attribute);
  Value of(Machine& machine, Value item, const Value& otherwise = {}) const;

 private:
  std::vector<Value> parts_;
};

}  // namespace wick::jinja
