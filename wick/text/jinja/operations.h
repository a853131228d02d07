// Python's operations on values.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wick/text/jinja/machine.h"
#include "wick/text/jinja/value.h"

namespace wick::jinja {

bool truth(const Value& value);
bool equal(Machine& machine, const Value& a, const Value& b);
// Python's < of values that have an order, or <=, > or >=.
bool ordered(Machine& machine, std::string_view symbol, const Value& a, const Value& b);
bool contains(Machine& machine, const Value& container, const Value& item);
bool compare(Machine& machine, std::string_view symbol, const Value& a, const Value& b);

Value binary(Machine& machine, std::string_view symbol, const Value& a, const Value& b);
Value negative(const Value& value);
Value positive(const Value& value);

size_t length(Machine& machine, const Value& value);
std::optional<size_t> length_if_any(const Value& value);
bool is_iterable(const Value& value);
bool is_hashable(const Value& value);

// The items of a value one after the other: a dict's are its keys, a string's its characters.
class Iteration {
 public:
  Iteration(Machine& machine, Value iterated);
  bool next(Value& item);

 private:
  Machine& machine_;
  Value iterated_;
  size_t at_ = 0;
};
std::vector<Value> all_items(Machine& machine, const Value& value);

// Adds a pair, or gives the key another value.
void put(Machine& machine, Dict::Pairs& pairs, const Value& key, Value value);
const Value* find(Machine& machine, const Dict& dict, const Value& key);
const Value* find(const Dict& dict, std::string_view key);

// x.name and x[key], as Jinja looks for both: first the attribute or the item, then the other one.
Value attribute_or_item(Machine& machine, const Value& value, std::string_view name);
Value item_or_attribute(Machine& machine, const Value& value, const Value& key);
Value slice(Machine& machine, const Value& value, const Value& start, const Value& stop, const Value& step);
// The attributes alone, methods among them; Missing if there is none.
Value attribute(Machine& machine, const Value& value, std::string_view name);

// An index of Python: from the end if it is negative.
int64_t index_of(const Value& value);

}  // namespace wick::jinja
