// Attributes, items and slices.
#include <algorithm>

#include "wick/io/quote.h"
#include "wick/text/jinja/characters.h"
#include "wick/text/jinja/objects.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"

namespace wick::jinja {
namespace {

Value missing_attribute(Machine& machine, const Value& value, std::string_view name) {
  return undefined(machine.budget,
                   fmt::format("expected an attribute {}, found {} without it", quote(name), type_name(value)));
}

// The item at an index or key; none if there is none.
std::optional<Value> item_if_any(Machine& machine, const Value& value, const Value& key) {
  if (const auto* dict = value.get_if<Mapping>()) {
    const Value* found = is_hashable(key) ? find(machine, **dict, key) : nullptr;
    return found ? std::optional(*found) : std::nullopt;
  }
  const auto* object = value.get_if<ObjectRef>();
  const bool is_sequence = value.is_string() || value.items() || (object && (*object)->is_sequence());
  if (!is_sequence || !key.is_integer()) return std::nullopt;
  const auto count = int64_t(*length_if_any(value));
  const int64_t index = key.integer() < 0 ? key.integer() + count : key.integer();
  if (index < 0 || index >= count) return std::nullopt;
  if (const Items* items = value.items()) return items->values[size_t(index)];
  if (object) return (*object)->at(machine, size_t(index));
  const Str& text = *value.get<String>();
  if (!text.is_ascii()) machine.budget.characters(size_t(index));
  const size_t at = text.is_ascii() ? size_t(index) : byte_of(text.bytes, size_t(index));
  return machine.part(text, std::string_view(text.bytes).substr(at, code_point_at(text.bytes, at).bytes));
}

// The indices of a slice, as Python clamps them.
struct Indices {
  int64_t start, stop, step, count;
};

Indices indices_of(int64_t length, const Value& start, const Value& stop, const Value& step) {
  const auto number = [](const Value& value, int64_t otherwise) {
    require_defined(value);
    require(value.is_none() || value.is_integer(), "expected an integer in a slice, found {}", type_name(value));
    return value.is_none() ? otherwise : value.integer();
  };
  const int64_t by = number(step, 1);
  require(by != 0, "expected a slice's step that is not zero, found 0");
  const int64_t least = by < 0 ? -1 : 0, most = by < 0 ? length - 1 : length;
  const auto clamped = [&](int64_t index) {
    return std::clamp(index < 0 ? std::max(index + length, least) : index, least, most);
  };
  const int64_t from = start.is_none() ? (by < 0 ? most : least) : clamped(number(start, 0));
  const int64_t to = stop.is_none() ? (by < 0 ? least : most) : clamped(number(stop, 0));
  const uint64_t stride = by < 0 ? uint64_t(0) - uint64_t(by) : uint64_t(by);
  const int64_t distance = by < 0 ? from - to : to - from;
  return {from, to, by, distance <= 0 ? 0 : int64_t((uint64_t(distance) - 1) / stride + 1)};
}

Value slice_of_text(Machine& machine, const Str& text, const Indices& at) {
  machine.budget.room(text.bytes.size());
  if (at.step == 1) {
    const size_t from = text.is_ascii() ? size_t(at.start) : byte_of(text.bytes, size_t(at.start));
    const std::string_view rest = std::string_view(text.bytes).substr(from);
    return machine.part(text, rest.substr(0, text.is_ascii() ? size_t(at.count) : byte_of(rest, size_t(at.count))),
                        text.is_markup);
  }
  std::vector<std::string_view> characters;
  machine.budget.room(text.length * sizeof(std::string_view));
  for (size_t i = 0; i < text.bytes.size(); i += characters.back().size())
    characters.push_back(std::string_view(text.bytes).substr(i, code_point_at(text.bytes, i).bytes));
  Text out(machine);
  for (int64_t i = 0; i < at.count; ++i) out.add(text, characters[size_t(at.start + i * at.step)]);
  return out.value(text.is_markup);
}

}  // namespace

Value attribute_or_item(Machine& machine, const Value& value, std::string_view name) {
  require_defined(value);
  Value found = attribute(machine, value, name);
  if (!found.is_undefined()) return found;
  if (const auto* dict = value.get_if<Mapping>()) {
    machine.budget.work((*dict)->pairs.size() * 8);
    if (const Value* item = find(**dict, name)) return *item;
  }
  return found;
}

Value item_or_attribute(Machine& machine, const Value& value, const Value& key) {
  require_defined(value);
  if (auto found = item_if_any(machine, value, key)) return *found;
  if (key.is_string()) return attribute(machine, value, key.bytes());
  return undefined(machine.budget, fmt::format("expected an item {}, found {} without it",
                                               excerpt(repr(machine, key)->bytes), type_name(value)));
}

Value slice(Machine& machine, const Value& value, const Value& start, const Value& stop, const Value& step) {
  require_defined(value);
  const auto* object = value.get_if<ObjectRef>();
  if (!value.is_string() && !value.items() && !(object && (*object)->is_sequence()))
    return undefined(machine.budget, fmt::format("expected a list or a string to slice, found {}", type_name(value)));
  const Indices at = indices_of(int64_t(*length_if_any(value)), start, stop, step);
  if (const auto* text = value.get_if<String>()) return slice_of_text(machine, **text, at);
  machine.budget.room(size_t(at.count) * sizeof(Value));
  std::vector<Value> values;
  values.reserve(size_t(at.count));
  for (int64_t i = 0; i < at.count; ++i) {
    const auto index = size_t(at.start + i * at.step);
    values.push_back(object ? (*object)->at(machine, index) : value.items()->values[index]);
  }
  return value.is<Tuple>() ? machine.tuple(std::move(values)) : machine.list(std::move(values));
}

Value methods_of(Machine& machine, const Value& value, std::string_view name);  // methods.cpp

Value attribute(Machine& machine, const Value& value, std::string_view name) {
  machine.budget.step();
  if (name.starts_with('_')) return missing_attribute(machine, value, name);
  if (const auto* object = value.get_if<ObjectRef>()) return (*object)->attribute(machine, name);
  Value method = methods_of(machine, value, name);
  return method.is_none() ? missing_attribute(machine, value, name) : method;
}

}  // namespace wick::jinja
