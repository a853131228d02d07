#include "wick/text/jinja/objects.h"

#include <algorithm>

#include "wick/io/quote.h"
#include "wick/text/jinja/arguments.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"

namespace wick::jinja {
namespace {

size_t length_of_range(int64_t start, int64_t stop, int64_t step) {
  require(step != 0, "expected a range's step that is not zero, found 0");
  if (step > 0 ? start >= stop : start <= stop) return 0;
  const uint64_t distance = step > 0 ? uint64_t(stop) - uint64_t(start) : uint64_t(start) - uint64_t(stop);
  const uint64_t stride = step > 0 ? uint64_t(step) : uint64_t(0) - uint64_t(step);
  const uint64_t length = (distance - 1) / stride + 1;
  require(length <= kMaxRange, "expected a range of at most {} numbers, found {}", kMaxRange, length);
  return size_t(length);
}

Value method(Machine& machine, std::string name, Function::Run run) {
  return ObjectRef(std::make_shared<Function>(machine.budget, std::move(name), std::move(run)));
}

}  // namespace

Range::Range(Budget& budget, int64_t start, int64_t stop, int64_t step)
    : Object(budget), start_(start), stop_(stop), step_(step), length_(length_of_range(start, stop, step)) {}

void Range::print(Machine&, Text& out) const {
  out +=
      step_ == 1 ? fmt::format("range({}, {})", start_, stop_) : fmt::format("range({}, {}, {})", start_, stop_, step_);
}

std::string_view DictView::type() const {
  return part_ == Part::keys ? "dict_keys" : part_ == Part::values ? "dict_values" : "dict_items";
}

void DictView::print(Machine& machine, Text& out) const {
  std::vector<Value> values;
  machine.budget.room(length() * sizeof(Value));
  for (size_t i = 0; i < length(); ++i) values.push_back(at(machine, i));
  (out += type()) += "(";
  add_repr(machine, out, machine.list(std::move(values)));
  out += ")";
}

Value DictView::at(Machine& machine, size_t index) const {
  const auto& [key, value] = dict_->pairs[index];
  if (part_ == Part::items) return machine.tuple({key, value});
  return part_ == Part::keys ? key : value;
}

bool Generator::next(Machine& machine, Value& item) {
  machine.budget.step();
  if (at_ >= items_.items()->values.size()) return false;
  item = items_.items()->values[at_++];
  return true;
}

void Group::print(Machine& machine, Text& out) const { add_repr(machine, out, machine.tuple({grouper_, list_})); }

Value Group::attribute(Machine& machine, std::string_view name) {
  if (name == "grouper") return grouper_;
  return name == "list" ? list_ : Object::attribute(machine, name);
}

// The names may come from a dict.
void Namespace::print(Machine& machine, Text& out) const {
  Dict::Pairs pairs;
  for (const auto& [name, value] : attributes_) pairs.emplace_back(machine.string(marked(name, true)), value);
  out += "<Namespace ";
  add_repr(machine, out, machine.dict(std::move(pairs)));
  out += ">";
}

Value Namespace::attribute(Machine& machine, std::string_view name) {
  machine.budget.work(attributes_.size() * 8);
  for (const auto& [other, value] : attributes_)
    if (other == name) return value;
  return Object::attribute(machine, name);
}

void Namespace::set(Machine& machine, std::string_view name, Value value) {
  require(!name.starts_with('_'), "expected a namespace's attribute that starts with no underscore, found {}",
          quote(name));
  machine.budget.work(attributes_.size() * 8);
  for (auto& [other, held] : attributes_)
    if (other == name) {
      held = std::move(value);
      return;
    }
  machine.budget.hold(2 * sizeof(attributes_[0]) + name.size());
  attributes_.emplace_back(std::string(name), std::move(value));
}

void Macro::print(Machine&, Text& out) const {
  out += syntax_->name.empty() ? "<Macro anonymous>" : fmt::format("<Macro {}>", repr_of_string(syntax_->name));
}

Value Macro::call(Machine& machine, Arguments arguments) {
  auto scope = scope_.lock();
  require(scope != nullptr, "expected a macro whose block goes on, found {}", quote(syntax_->name));
  return machine.call_macro(*syntax_, std::move(scope), std::move(arguments));
}

Value Macro::attribute(Machine& machine, std::string_view name) {
  if (name == "name") return syntax_->name.empty() ? Value() : machine.string(syntax_->name);
  if (name == "caller") return syntax_->uses_caller;
  if (name == "catch_kwargs") return syntax_->uses_kwargs;
  if (name == "catch_varargs") return syntax_->uses_varargs;
  if (name != "arguments") return Object::attribute(machine, name);
  std::vector<Value> names;
  for (const std::string& parameter : syntax_->parameters) names.push_back(machine.string(parameter));
  return machine.tuple(std::move(names));
}

void Function::print(Machine&, Text& out) const { out += fmt::format("<function {}>", name_); }

Value Cycler::attribute(Machine& machine, std::string_view name) {
  if (name == "current") return current();
  if (name == "items") return items_;
  if (name == "next")
    return method(machine, "next", [this, self = shared_from_this()](Machine&, Arguments) {
      Value value = current();
      at_ = (at_ + 1) % items_.items()->values.size();
      return value;
    });
  if (name == "reset")
    return method(machine, "reset", [this, self = shared_from_this()](Machine&, Arguments) {
      at_ = 0;
      return Value();
    });
  return Object::attribute(machine, name);
}

Value Joiner::call(Machine& machine, Arguments arguments) {
  Bound(std::move(arguments), "joiner", "");
  return std::exchange(used_, true) ? separator_ : machine.string("");
}

}  // namespace wick::jinja
