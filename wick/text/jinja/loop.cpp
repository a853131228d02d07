#include "wick/text/jinja/loop.h"

#include "wick/text/jinja/arguments.h"
#include "wick/text/jinja/objects.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"

namespace wick::jinja {

bool LoopObject::look_ahead() {
  if (!ahead_.empty()) return true;
  Value item;
  if (has_ended_ || !pull_(item)) return false;
  ahead_.push_back(std::move(item));
  return true;
}

bool LoopObject::advance() {
  if (!look_ahead()) return false;
  if (index_ >= 0) before_ = std::move(current_);
  current_ = std::move(ahead_.front());
  ahead_.pop_front();
  ++index_;
  return true;
}

// All that is left of a generator has to be taken to be counted.
int64_t LoopObject::count() {
  if (!length_) {
    for (Value item; !has_ended_ && pull_(item);) {
      machine_.budget.room(sizeof(Value) * (2 * ahead_.size() + 1));
      ahead_.push_back(std::move(item));
    }
    length_ = size_t(index_ + 1) + ahead_.size();
  }
  return int64_t(*length_);
}

void LoopObject::clear() {
  has_ended_ = true;
  pull_ = nullptr, recurse_ = nullptr;
  before_ = {}, last_changed_ = {}, current_ = {};
  ahead_.clear();
}

void LoopObject::print(Machine&, Text& out) const { out += fmt::format("<LoopContext {}>", index_ + 1); }

Value LoopObject::call(Machine&, Arguments arguments) {
  require(recurse_ != nullptr, "expected a loop marked as recursive, found another");
  const Bound given(std::move(arguments), "loop", "iterable");
  return recurse_(given[0], depth_ + 1);
}

Value LoopObject::cycle(Arguments arguments) {
  const auto& items = arguments.positional;
  require(!items.empty(), "expected items for loop.cycle, found none");
  return items[size_t(index_) % items.size()];
}

Value LoopObject::changed(Arguments arguments) {
  require(!has_ended_, "expected a loop that goes on, found one that has ended");
  Value values = machine_.tuple(std::move(arguments.positional));
  if (last_changed_ && equal(machine_, *last_changed_, values)) return false;
  last_changed_ = std::move(values);
  return true;
}

Value LoopObject::attribute(Machine& machine, std::string_view name) {
  if (name == "index") return index_ + 1;
  if (name == "index0") return index_;
  if (name == "first") return index_ == 0;
  if (name == "last") return !look_ahead();
  if (name == "length") return count();
  if (name == "revindex") return count() - index_;
  if (name == "revindex0") return count() - index_ - 1;
  if (name == "depth") return int64_t(depth_) + 1;
  if (name == "depth0") return int64_t(depth_);
  if (name == "previtem") return before_ ? *before_ : undefined(machine.budget, "expected a previous item, found none");
  if (name == "nextitem")
    return look_ahead() ? ahead_.front() : undefined(machine.budget, "expected a next item, found none");
  const auto method = [&](auto run) {
    return Value(ObjectRef(std::make_shared<Function>(machine.budget, std::string(name),
                                                      [self = shared_from_this(), run](Machine&, Arguments arguments) {
                                                        return (*self.*run)(std::move(arguments));
                                                      })));
  };
  if (name == "cycle") return method(&LoopObject::cycle);
  if (name == "changed") return method(&LoopObject::changed);
  return Object::attribute(machine, name);
}

}  // namespace wick::jinja
