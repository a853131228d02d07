#include "wick/text/jinja/filters.h"

#include "wick/io/quote.h"
#include "wick/text/jinja/characters.h"
#include "wick/text/jinja/filter_tables.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"

namespace wick::jinja {
namespace {

constexpr size_t kStepsOfAFilter = 8;  // it is looked up, and so are its parameters

const Filter* find_filter(std::string_view name) {
  for (const auto table : {text_filters(), sequence_filters(), selecting_filters(), number_filters()})
    for (const Filter& filter : table)
      if (filter.name == name) return &filter;
  return nullptr;
}

bool is_number_text(std::string_view text) {
  return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == text.npos;
}

}  // namespace

bool is_filter(std::string_view name) { return find_filter(name) != nullptr; }

Value apply_filter(Machine& machine, std::string_view name, Value subject, Arguments arguments) {
  const Filter* filter = find_filter(name);
  require(filter != nullptr, "expected a filter of chat templates, found {}", quote(name));
  machine.budget.step(kStepsOfAFilter);
  if (filter->run_with_any) return filter->run_with_any(machine, subject, std::move(arguments));
  return filter->run(machine, subject, Bound(std::move(arguments), name, filter->parameters));
}

String soft_text(Machine& machine, const Value& value) {
  machine.budget.room(value.is_string() ? 4 * value.bytes().size() : 0);
  machine.budget.characters(value.is_string() ? value.bytes().size() : 0);
  return str(machine, value);
}

bool is_markup(const Value& value) { return value.is_string() && value.get<String>()->is_markup; }

Value without_case(Machine& machine, const Value& value) {
  return value.is_string() ? machine.string(python_lower_case(soft_text(machine, value)->bytes)) : value;
}

AttributePath::AttributePath(Machine& machine, const Value& attribute) {
  if (attribute.is_none()) return;
  if (!attribute.is_string()) {
    parts_.push_back(attribute);
    return;
  }
  std::string_view rest = attribute.bytes();
  machine.budget.room(rest.size() * sizeof(Value));
  while (true) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    parts_.push_back(is_number_text(part) ? Value(int64_t(std::stol(std::string(part))))
                                          : machine.string(std::string(part)));
    if (part.size() == rest.size()) return;
    rest.remove_prefix(part.size() + 1);
  }
}

Value AttributePath::of(Machine& machine, Value item, const Value& otherwise) const {
  for (const Value& part : parts_) {
    item = item_or_attribute(machine, item, part);
    if (item.is_undefined() && !otherwise.is_none()) item = otherwise;
  }
  return item;
}

}  // namespace wick::jinja
