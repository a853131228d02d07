#include "wick/text/jinja/value.h"

#include <algorithm>

#include "wick/io/quote.h"
#include "wick/text/jinja/machine.h"
#include "wick/text/jinja/print.h"

namespace wick::jinja {
namespace {

constexpr size_t kObjectBytes = 64;  // a value's own, with its counters

size_t count_code_points(std::string_view text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }));
}

int checked_depth(int deepest) {
  require(deepest < kMaxValueDepth, "expected lists and dicts at most {} deep, found more", kMaxValueDepth);
  return deepest + 1;
}

}  // namespace

Str::Str(Marked text, bool markup, Budget* budget)
    : Marked(std::move(text)),
      length(count_code_points(bytes)),
      is_markup(markup),
      charge(budget, bytes.capacity() + given.capacity() * sizeof(Run) + kObjectBytes) {}

Items::Items(std::vector<Value> list, Budget* budget)
    : values(std::move(list)), depth(1), charge(budget, values.capacity() * sizeof(Value) + kObjectBytes) {
  int deepest = 0;
  for (const Value& value : values) deepest = std::max(deepest, value.depth());
  depth = checked_depth(deepest);
}

Items::~Items() = default;

Dict::Dict(Pairs list, Budget* budget)
    : pairs(std::move(list)), depth(1), charge(budget, pairs.capacity() * 2 * sizeof(Value) + kObjectBytes) {
  int deepest = 0;
  for (const auto& [key, value] : pairs) deepest = std::max({deepest, key.depth(), value.depth()});
  depth = checked_depth(deepest);
}

Dict::~Dict() = default;

void Object::print(Machine&, Text& out) const { out += fmt::format("<{}>", type()); }

Value Object::call(Machine&, Arguments) { refuse("expected something to call, found {}", type()); }

Value Object::attribute(Machine& machine, std::string_view name) {
  return undefined(machine.budget, fmt::format("expected an attribute {}, found {} without it", quote(name), type()));
}

bool Object::next(Machine&, Value&) { refuse("expected something to iterate, found {}", type()); }

Value Object::at(Machine&, size_t) const { refuse("expected a list, found {}", type()); }

const Items* Value::items() const {
  if (const auto* list = get_if<List>()) return list->get();
  if (const auto* tuple = get_if<Tuple>()) return tuple->get();
  return nullptr;
}

int Value::depth() const {
  if (const Items* list = items()) return list->depth;
  if (const auto* dict = get_if<Mapping>()) return (*dict)->depth;
  if (const auto* object = get_if<ObjectRef>()) return (*object)->depth();
  return 0;
}

bool Value::same_as(const Value& other) const {
  if (held_.index() != other.held_.index()) return false;
  return std::visit(
      [&](const auto& held) {
        using T = std::remove_cvref_t<decltype(held)>;
        if constexpr (std::is_same_v<T, String>)
          return held->bytes == other.bytes();  // Python keeps one copy of most short strings
        else
          return held == other.get<T>();
      },
      held_);
}

std::string_view type_name(const Value& value) {
  if (value.is_none()) return "None";
  if (value.is<bool>()) return "bool";
  if (value.is<int64_t>()) return "int";
  if (value.is<double>()) return "float";
  if (value.is_string()) return "str";
  if (value.is<List>()) return "list";
  if (value.is<Tuple>()) return "tuple";
  if (value.is<Mapping>()) return "dict";
  if (value.is_undefined()) return "an undefined value";
  return value.get<ObjectRef>()->type();
}

Value undefined(Budget& budget, std::string message) {
  const size_t bytes = message.size() + kObjectBytes;
  return Undefined(new Missing{std::move(message), Charge(&budget, bytes)});
}

void require_defined(const Value& value) {
  if (const auto* missing = value.get_if<Undefined>()) refuse("{}", (*missing)->message);
}

}  // namespace wick::jinja
