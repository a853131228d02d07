// The `loop` of a for statement.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "wick/text/jinja/machine.h"
#include "wick/text/jinja/value.h"

namespace wick::jinja {

class LoopObject : public Object, public std::enable_shared_from_this<LoopObject> {
 public:
  using Pull = std::function<bool(Value&)>;
  using Recurse = std::function<Value(const Value& items, int depth)>;
  // `length` is that of the items, if it is known before they are taken.
  LoopObject(Machine& machine, Pull pull, std::optional<size_t> length, int depth)
      : Object(machine.budget), machine_(machine), pull_(std::move(pull)), length_(length), depth_(depth) {}

  bool advance();  // to the next item
  const Value& current() const { return current_; }
  void set_recurse(Recurse recurse) { recurse_ = std::move(recurse); }

  std::string_view type() const override { return "LoopContext"; }
  void print(Machine&, Text& out) const override;
  bool is_callable() const override { return true; }
  Value call(Machine& machine, Arguments arguments) override;
  Value attribute(Machine& machine, std::string_view name) override;
  void clear() override;

 private:
  int64_t count();
  bool look_ahead();
  Value cycle(Arguments arguments);
  Value changed(Arguments arguments);

  Machine& machine_;
  Pull pull_;
  Recurse recurse_;
  std::optional<size_t> length_;
  int depth_;
  int64_t index_ = -1;
  std::optional<Value> before_, last_changed_;
  Value current_;
  std::deque<Value> ahead_;  // taken, but not come to
  bool has_ended_ = false;
};

}  // namespace wick::jinja
