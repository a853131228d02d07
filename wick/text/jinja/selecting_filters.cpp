// Filters that apply other filters or tests to each item.
#include <array>

#include "wick/text/jinja/filter_tables.h"
#include "wick/text/jinja/filters.h"
#include "wick/text/jinja/objects.h"
#include "wick/text/jinja/operations.h"

namespace wick::jinja {
namespace {

// The first argument of those that are left.
Value take_first(Arguments& arguments, std::string_view kind) {
  require(!arguments.positional.empty(), "expected {}, found none", kind);
  Value value = std::move(arguments.positional.front());
  arguments.positional.erase(arguments.positional.begin());
  return value;
}

std::string take_name(Arguments& arguments, std::string_view kind) {
  const Value value = take_first(arguments, kind);
  require(value.is_string(), "expected {}, found {}", kind, type_name(value));
  return value.bytes();
}

template <class Each>
Value each_item(Machine& machine, const Value& subject, const Each& each) {
  std::vector<Value> values;
  Iteration items(machine, subject);
  for (Value item; items.next(item);) {
    if (values.size() == values.capacity()) machine.budget.room((2 * values.size() + 1) * sizeof(Value));
    each(values, item);
  }
  return ObjectRef(std::make_shared<Generator>(machine.budget, machine.list(std::move(values))));
}

Value map(Machine& machine, const Value& subject, Arguments arguments) {
  if (!truth(subject)) return each_item(machine, machine.list({}), [](auto&, const Value&) {});
  if (arguments.positional.empty() && !arguments.named.empty()) {
    const Bound given(std::move(arguments), "map", "attribute default?");
    const AttributePath path(machine, given[0]);
    return each_item(machine, subject, [&](std::vector<Value>& values, const Value& item) {
      values.push_back(path.of(machine, item, given.get(1)));
    });
  }
  const std::string name = take_name(arguments, "the name of a filter");
  return each_item(machine, subject, [&](std::vector<Value>& values, const Value& item) {
    values.push_back(apply_filter(machine, name, item, arguments));
  });
}

Value choose(Machine& machine, const Value& subject, Arguments arguments, bool by_attribute, bool wanted) {
  if (!truth(subject)) return each_item(machine, machine.list({}), [](auto&, const Value&) {});
  const AttributePath path(machine, by_attribute ? take_first(arguments, "an attribute to select by") : Value());
  const bool has_test = !arguments.positional.empty();
  const std::string name = has_test ? take_name(arguments, "the name of a test") : "";
  return each_item(machine, subject, [&](std::vector<Value>& values, const Value& item) {
    const Value looked_at = path.of(machine, item);
    const bool holds = has_test ? apply_test(machine, name, looked_at, arguments) : truth(looked_at);
    if (holds == wanted) values.push_back(item);
  });
}

Value select(Machine& m, const Value& s, Arguments a) { return choose(m, s, std::move(a), false, true); }
Value reject(Machine& m, const Value& s, Arguments a) { return choose(m, s, std::move(a), false, false); }
Value selectattr(Machine& m, const Value& s, Arguments a) { return choose(m, s, std::move(a), true, true); }
Value rejectattr(Machine& m, const Value& s, Arguments a) { return choose(m, s, std::move(a), true, false); }

constexpr std::array<Filter, 5> kSelectingFilters{{{"map", "", nullptr, map},
                                                   {"reject", "", nullptr, reject},
                                                   {"rejectattr", "", nullptr, rejectattr},
                                                   {"select", "", nullptr, select},
                                                   {"selectattr", "", nullptr, selectattr}}};

}  // namespace

std::span<const Filter> selecting_filters() { return kSelectingFilters; }

}  // namespace wick::jinja
