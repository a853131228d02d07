// Jinja's tests: `x is name`.
#include <algorithm>
#include <array>
#include <cmath>

#include "wick/io/quote.h"
#include "wick/text/jinja/arguments.h"
#include "wick/text/jinja/characters.h"
#include "wick/text/jinja/filters.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"

namespace wick::jinja {
namespace {

bool divides(Machine& machine, const Value& value, const Value& by) {
  return equal(machine, binary(machine, "%", value, by), int64_t(0));
}

bool is_odd(Machine& machine, const Value& value) {
  return equal(machine, binary(machine, "%", value, int64_t(2)), int64_t(1));
}

template <bool (*has_case)(std::string_view)>
bool is_all(Machine& machine, const Value& value) {
  return has_case(str(machine, value)->bytes);
}

bool is_callable(const Value& value) { return value.is<ObjectRef>() && value.get<ObjectRef>()->is_callable(); }

bool is_sequence(const Value& value) {
  if (!length_if_any(value)) return false;
  return !value.is<ObjectRef>() || value.get<ObjectRef>()->is_sequence();
}

bool names(const Value& value, bool (*is_known)(std::string_view)) {
  require(is_hashable(value), "expected a name, found {}", type_name(value));
  return value.is_string() && is_known(value.bytes());
}

struct Test {
  std::string_view name;
  bool (*run)(Machine& machine, const Value& value);
};
constexpr std::array<Test, 21> kTests{
    {{"boolean", [](Machine&, const Value& v) { return v.is<bool>(); }},
     {"callable", [](Machine&, const Value& v) { return is_callable(v) || v.is_undefined(); }},
     {"defined", [](Machine&, const Value& v) { return !v.is_undefined(); }},
     {"escaped", [](Machine&, const Value& v) { return v.is_string() && v.get<String>()->is_markup; }},
     {"even", [](Machine& m, const Value& v) { return divides(m, v, int64_t(2)); }},
     {"false", [](Machine&, const Value& v) { return v.is<bool>() && !v.get<bool>(); }},
     {"filter", [](Machine&, const Value& v) { return names(v, is_filter); }},
     {"float", [](Machine&, const Value& v) { return v.is<double>(); }},
     {"integer", [](Machine&, const Value& v) { return v.is<int64_t>(); }},
     {"iterable", [](Machine&, const Value& v) { return is_iterable(v); }},
     {"lower", is_all<is_all_lower>},
     {"mapping", [](Machine&, const Value& v) { return v.is<Mapping>(); }},
     {"none", [](Machine&, const Value& v) { return v.is_none(); }},
     {"number", [](Machine&, const Value& v) { return v.is_number(); }},
     {"odd", is_odd},
     {"sequence", [](Machine&, const Value& v) { return is_sequence(v); }},
     {"string", [](Machine&, const Value& v) { return v.is_string(); }},
     {"test", [](Machine&, const Value& v) { return names(v, is_test); }},
     {"true", [](Machine&, const Value& v) { return v.is<bool>() && v.get<bool>(); }},
     {"undefined", [](Machine&, const Value& v) { return v.is_undefined(); }},
     {"upper", is_all<is_all_upper>}}};

// Tests with an operand, by the operation that they are.
constexpr std::array<std::pair<std::string_view, std::string_view>, 18> kComparisons{{{"==", "=="},
                                                                                      {"eq", "=="},
                                                                                      {"equalto", "=="},
                                                                                      {"!=", "!="},
                                                                                      {"ne", "!="},
                                                                                      {">", ">"},
                                                                                      {"gt", ">"},
                                                                                      {">=", ">="},
                                                                                      {"greaterthan", ">"},
                                                                                      {"ge", ">="},
                                                                                      {"<", "<"},
                                                                                      {"lt", "<"},
                                                                                      {"lessthan", "<"},
                                                                                      {"<=", "<="},
                                                                                      {"le", "<="},
                                                                                      {"in", "in"},
                                                                                      {"divisibleby", "%"},
                                                                                      {"sameas", "is"}}};

std::string_view comparison_of(std::string_view name) {
  const auto* at =
      std::find_if(kComparisons.begin(), kComparisons.end(), [&](const auto& row) { return row.first == name; });
  return at == kComparisons.end() ? std::string_view() : at->second;
}

const Test* find_test(std::string_view name) {
  const auto* at = std::find_if(kTests.begin(), kTests.end(), [&](const Test& test) { return test.name == name; });
  return at == kTests.end() ? nullptr : &*at;
}

}  // namespace

bool is_test(std::string_view name) {
  return !name.empty() && (find_test(name) != nullptr || !comparison_of(name).empty());
}

bool apply_test(Machine& machine, std::string_view name, const Value& subject, Arguments arguments) {
  require(is_test(name), "expected a test of chat templates, found {}", quote(name));
  const std::string_view symbol = comparison_of(name);
  const Bound given(std::move(arguments), name, symbol.empty() ? "" : "other");
  if (symbol.empty()) return find_test(name)->run(machine, subject);
  if (symbol == "%") return divides(machine, subject, given[0]);
  if (symbol == "is") return subject.same_as(given[0]);
  return compare(machine, symbol, subject, given[0]);
}

}  // namespace wick::jinja
