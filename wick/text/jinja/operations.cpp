#include "wick/text/jinja/operations.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "wick/text/jinja/characters.h"
#include "wick/text/jinja/objects.h"
#include "wick/text/jinja/print.h"
#include "wick/text/jinja/strings.h"

namespace wick::jinja {
namespace {

// -1, 0 or 1, exactly; 2 where one is not a number.
int compare_integer_and_real(int64_t a, double b) {
  if (std::isnan(b)) return 2;
  if (b >= 0x1p63) return -1;
  if (b < -0x1p63) return 1;
  const auto whole = int64_t(b);
  if (a != whole) return a < whole ? -1 : 1;
  const double rest = b - double(whole);
  return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
  if (a.is_integer()) return compare_integer_and_real(a.integer(), b.real());
  if (b.is_integer()) {
    const int other = compare_integer_and_real(b.integer(), a.real());
    return other == 2 ? 2 : -other;
  }
  if (std::isnan(a.real()) || std::isnan(b.real())) return 2;
  return a.real() < b.real() ? -1 : a.real() > b.real() ? 1 : 0;
}

bool equal_items(Machine& machine, const std::vector<Value>& a, const std::vector<Value>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const Value& x, const Value& y) { return equal(machine, x, y); });
}

bool equal_dicts(Machine& machine, const Dict& a, const Dict& b) {
  if (a.pairs.size() != b.pairs.size()) return false;
  return std::all_of(a.pairs.begin(), a.pairs.end(), [&](const auto& pair) {
    const Value* other = find(machine, b, pair.first);
    return other && equal(machine, pair.second, *other);
  });
}

bool order_holds(std::string_view symbol, int order) {
  if (symbol == "<") return order == -1;
  if (symbol == "<=") return order == -1 || order == 0;
  if (symbol == ">") return order == 1;
  return order == 1 || order == 0;
}

void check_fits(bool overflows, std::string_view symbol) {
  require(!overflows, "expected an integer of 64 bits from {}, found a larger one", symbol);
}

int64_t floor_divide(int64_t a, int64_t b) {
  check_fits(a == std::numeric_limits<int64_t>::min() && b == -1, "//");
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

double floor_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_divide(double a, double b) {
  const double quotient = (a - floor_modulo(a, b)) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

Value power(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer() && b.integer() >= 0) {
    int64_t base = a.integer(), result = 1;
    for (int64_t left = b.integer(); left > 0; left >>= 1) {
      if (left & 1) check_fits(__builtin_mul_overflow(result, base, &result), "**");
      if (left > 1) check_fits(__builtin_mul_overflow(base, base, &base), "**");
    }
    return result;
  }
  require(a.real() != 0 || b.real() >= 0, "expected no negative power of zero, found one");
  require(a.real() >= 0 || b.real() == std::floor(b.real()), "expected a whole power of a negative number, found {}",
          repr_of_float(b.real()));
  const double result = std::pow(a.real(), b.real());
  require(!std::isinf(result) || std::isinf(a.real()) || std::isinf(b.real()),
          "expected a float from **, found a larger one");
  return result;
}

Value integers(std::string_view symbol, int64_t a, int64_t b) {
  int64_t result = 0;
  if (symbol == "+") check_fits(__builtin_add_overflow(a, b, &result), symbol);
  if (symbol == "-") check_fits(__builtin_sub_overflow(a, b, &result), symbol);
  if (symbol == "*") check_fits(__builtin_mul_overflow(a, b, &result), symbol);
  if (symbol == "+" || symbol == "-" || symbol == "*") return result;
  require(b != 0, "expected no division by zero, found one");
  if (symbol == "/") return double(a) / double(b);
  if (symbol == "//") return floor_divide(a, b);
  return b == -1 ? Value(int64_t(0)) : Value(a - floor_divide(a, b) * b);
}

Value reals(std::string_view symbol, double a, double b) {
  if (symbol == "+") return a + b;
  if (symbol == "-") return a - b;
  if (symbol == "*") return a * b;
  require(b != 0, "expected no division by zero, found one");
  if (symbol == "/") return a / b;
  return symbol == "//" ? floor_divide(a, b) : floor_modulo(a, b);
}

Value joined_items(Machine& machine, const Value& a, const Value& b) {
  const auto &first = a.items()->values, &second = b.items()->values;
  machine.budget.room((first.size() + second.size()) * sizeof(Value));
  std::vector<Value> values;
  values.reserve(first.size() + second.size());
  values.insert(values.end(), first.begin(), first.end());
  values.insert(values.end(), second.begin(), second.end());
  return a.is<List>() ? machine.list(std::move(values)) : machine.tuple(std::move(values));
}

Value joined_texts(Machine& machine, const Str& a, const Str& b) {
  machine.budget.room(6 * (a.bytes.size() + b.bytes.size()));
  const bool is_markup = a.is_markup || b.is_markup;
  Text out(machine);
  for (const Str* text : {&a, &b}) {
    if (is_markup && !text->is_markup)
      out.add_made(escape_html(text->bytes), *text, text->bytes);
    else
      out += *text;
  }
  return out.value(is_markup);
}

Value repeated(Machine& machine, const Value& value, int64_t times) {
  const size_t count = size_t(std::max<int64_t>(times, 0));
  if (const auto* text = value.get_if<String>()) {
    Text out(machine);
    out.repeat(**text, count);
    return out.value((*text)->is_markup);
  }
  const auto& items = value.items()->values;
  if (items.empty() || count == 0) return value.is<List>() ? machine.list({}) : machine.tuple({});
  require(count <= kMaxMemoryBytes / sizeof(Value) / items.size(), "expected a shorter list, found {} times {} items",
          count, items.size());
  machine.budget.room(items.size() * count * sizeof(Value));
  std::vector<Value> values;
  values.reserve(items.size() * count);
  for (size_t i = 0; i < count; ++i) values.insert(values.end(), items.begin(), items.end());
  return value.is<List>() ? machine.list(std::move(values)) : machine.tuple(std::move(values));
}

bool may_repeat(const Value& value) { return value.is_string() || value.items(); }

}  // namespace

bool truth(const Value& value) {
  if (value.is_none() || value.is_undefined()) return false;
  if (value.is_integer()) return value.integer() != 0;
  if (const auto* real = value.get_if<double>()) return *real != 0;
  if (value.is_string()) return !value.bytes().empty();
  if (const Items* items = value.items()) return !items->values.empty();
  if (const auto* dict = value.get_if<Mapping>()) return !(*dict)->pairs.empty();
  const Object& object = *value.get<ObjectRef>();
  return !object.is_collection() || object.length() > 0;
}

bool equal(Machine& machine, const Value& a, const Value& b) {
  machine.budget.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.is_string() && b.is_string()) {
    if (a.bytes().size() == b.bytes().size()) machine.budget.work(a.bytes().size());
    return a.bytes() == b.bytes();
  }
  if ((a.is<List>() && b.is<List>()) || (a.is<Tuple>() && b.is<Tuple>()))
    return equal_items(machine, a.items()->values, b.items()->values);
  if (a.is<Mapping>() && b.is<Mapping>()) return equal_dicts(machine, *a.get<Mapping>(), *b.get<Mapping>());
  if (a.is_undefined() && b.is_undefined()) return true;
  const auto range = a.object<Range>(), other = b.object<Range>();
  if (range && other) return equal_items(machine, all_items(machine, a), all_items(machine, b));
  return a.same_as(b);
}

bool ordered(Machine& machine, std::string_view symbol, const Value& a, const Value& b) {
  machine.budget.step();
  if (a.is_number() && b.is_number()) return order_holds(symbol, compare_numbers(a, b));
  if (a.is_string() && b.is_string()) {
    machine.budget.work(std::min(a.bytes().size(), b.bytes().size()));
    const int order = a.bytes().compare(b.bytes());  // UTF-8 has the order of code points
    return order_holds(symbol, order < 0 ? -1 : order > 0 ? 1 : 0);
  }
  if ((a.is<List>() && b.is<List>()) || (a.is<Tuple>() && b.is<Tuple>())) {
    const auto &first = a.items()->values, &second = b.items()->values;
    for (size_t i = 0; i < std::min(first.size(), second.size()); ++i)
      if (!equal(machine, first[i], second[i])) return ordered(machine, symbol, first[i], second[i]);
    return order_holds(symbol, first.size() < second.size() ? -1 : first.size() > second.size() ? 1 : 0);
  }
  require_defined(a), require_defined(b);
  refuse("expected values that {} compares, found {} and {}", symbol, type_name(a), type_name(b));
}

bool contains(Machine& machine, const Value& container, const Value& item) {
  if (const auto* text = container.get_if<String>()) {
    require_defined(item);
    require(item.is_string(), "expected a string in front of `in` a string, found {}", type_name(item));
    return find_text(machine, (*text)->bytes, item.bytes()) != std::string::npos;
  }
  if (const auto* dict = container.get_if<Mapping>()) return find(machine, **dict, item) != nullptr;
  Iteration items(machine, container);
  for (Value each; items.next(each);)
    if (equal(machine, each, item)) return true;
  return false;
}

bool compare(Machine& machine, std::string_view symbol, const Value& a, const Value& b) {
  if (symbol == "==") return equal(machine, a, b);
  if (symbol == "!=") return !equal(machine, a, b);
  if (symbol == "in") return contains(machine, b, a);
  if (symbol == "not in") return !contains(machine, b, a);
  return ordered(machine, symbol, a, b);
}

Value binary(Machine& machine, std::string_view symbol, const Value& a, const Value& b) {
  if (symbol == "%" && a.is_string()) return format_percent(machine, *a.get<String>(), b);
  require_defined(a), require_defined(b);
  if (a.is_number() && b.is_number()) {
    if (symbol == "**") return power(a, b);
    if (a.is_integer() && b.is_integer()) return integers(symbol, a.integer(), b.integer());
    return reals(symbol, a.real(), b.real());
  }
  if (symbol == "+" && a.is_string() && b.is_string()) return joined_texts(machine, *a.get<String>(), *b.get<String>());
  if (symbol == "+" && ((a.is<List>() && b.is<List>()) || (a.is<Tuple>() && b.is<Tuple>())))
    return joined_items(machine, a, b);
  if (symbol == "*" && may_repeat(a) && b.is_integer()) return repeated(machine, a, b.integer());
  if (symbol == "*" && may_repeat(b) && a.is_integer()) return repeated(machine, b, a.integer());
  refuse("expected values for {}, found {} and {}", symbol, type_name(a), type_name(b));
}

Value negative(const Value& value) {
  require_defined(value);
  if (const auto* real = value.get_if<double>()) return -*real;
  require(value.is_integer(), "expected a number behind -, found {}", type_name(value));
  return integers("-", 0, value.integer());
}

Value positive(const Value& value) {
  require_defined(value);
  require(value.is_number(), "expected a number behind +, found {}", type_name(value));
  return value.is<double>() ? value : Value(value.integer());
}

std::optional<size_t> length_if_any(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const auto* text = value.get_if<String>()) return (*text)->length;
  if (const Items* items = value.items()) return items->values.size();
  if (const auto* dict = value.get_if<Mapping>()) return (*dict)->pairs.size();
  const auto* object = value.get_if<ObjectRef>();
  return object && (*object)->is_collection() ? std::optional((*object)->length()) : std::nullopt;
}

size_t length(Machine&, const Value& value) {
  const auto known = length_if_any(value);
  require(known.has_value(), "expected something with a length, found {}", type_name(value));
  return *known;
}

bool is_iterable(const Value& value) {
  const auto* object = value.get_if<ObjectRef>();
  return length_if_any(value) || (object && (*object)->is_iterator());
}

bool is_hashable(const Value& value) {
  if (value.is<List>() || value.is<Mapping>()) return false;
  const Items* items = value.items();
  return !items || std::all_of(items->values.begin(), items->values.end(), is_hashable);
}

Iteration::Iteration(Machine& machine, Value iterated) : machine_(machine), iterated_(std::move(iterated)) {
  require(is_iterable(iterated_), "expected something to iterate, found {}", type_name(iterated_));
}

bool Iteration::next(Value& item) {
  machine_.budget.step();
  if (const auto* text = iterated_.get_if<String>()) {
    const std::string& bytes = (*text)->bytes;
    if (at_ >= bytes.size()) return false;
    const size_t length = code_point_at(bytes, at_).bytes;
    item = machine_.part(**text, std::string_view(bytes).substr(at_, length));
    at_ += length;
    return true;
  }
  const auto* object = iterated_.get_if<ObjectRef>();
  if (object && (*object)->is_iterator()) return (*object)->next(machine_, item);
  if (at_ >= *length_if_any(iterated_)) return false;
  if (const Items* items = iterated_.items())
    item = items->values[at_++];
  else if (const auto* dict = iterated_.get_if<Mapping>())
    item = (*dict)->pairs[at_++].first;
  else
    item = (*object)->at(machine_, at_++);
  return true;
}

std::vector<Value> all_items(Machine& machine, const Value& value) {
  if (const Items* items = value.items()) {
    machine.budget.room(items->values.size() * sizeof(Value));
    return items->values;
  }
  std::vector<Value> values;
  Iteration items(machine, value);
  for (Value item; items.next(item);) {
    if (values.size() == values.capacity()) machine.budget.room((2 * values.size() + 1) * sizeof(Value));
    values.push_back(std::move(item));
  }
  return values;
}

void put(Machine& machine, Dict::Pairs& pairs, const Value& key, Value value) {
  require(is_hashable(key), "expected a key that does not change, found {}", type_name(key));
  for (auto& [other, held] : pairs)
    if (equal(machine, other, key)) {
      held = std::move(value);
      return;
    }
  if (pairs.size() == pairs.capacity()) machine.budget.room((2 * pairs.size() + 1) * 2 * sizeof(Value));
  pairs.emplace_back(key, std::move(value));
}

const Value* find(Machine& machine, const Dict& dict, const Value& key) {
  if (key.is_string()) {
    machine.budget.work(dict.pairs.size() * 8);
    return find(dict, key.bytes());
  }
  require(is_hashable(key), "expected a key that does not change, found {}", type_name(key));
  for (const auto& [other, value] : dict.pairs)
    if (equal(machine, other, key)) return &value;
  return nullptr;
}

const Value* find(const Dict& dict, std::string_view key) {
  for (const auto& [other, value] : dict.pairs)
    if (other.is_string() && other.bytes() == key) return &value;
  return nullptr;
}

}  // namespace wick::jinja
