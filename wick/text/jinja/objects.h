// The kinds of objects that templates meet.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "wick/text/jinja/machine.h"
#include "wick/text/jinja/value.h"

namespace wick::jinja {

class Range : public Object {
 public:
  Range(Budget& budget, int64_t start, int64_t stop, int64_t step);
  std::string_view type() const override { return "range"; }
  void print(Machine&, Text& out) const override;
  bool is_collection() const override { return true; }
  bool is_sequence() const override { return true; }
  size_t length() const override { return length_; }
  Value at(Machine&, size_t index) const override {
    return int64_t(uint64_t(start_) + uint64_t(index) * uint64_t(step_));
  }

 private:
  int64_t start_, stop_, step_;
  size_t length_;
};

// dict.keys(), dict.values() and dict.items().
class DictView : public Object {
 public:
  enum class Part { keys, values, items };
  DictView(Budget& budget, Mapping dict, Part part) : Object(budget), dict_(std::move(dict)), part_(part) {}
  std::string_view type() const override;
  void print(Machine&, Text& out) const override;
  bool is_collection() const override { return true; }
  size_t length() const override { return dict_->pairs.size(); }
  Value at(Machine&, size_t index) const override;
  int depth() const override { return dict_->depth; }

 private:
  Mapping dict_;
  Part part_;
};

// What filters return that are generators in Jinja: the items may be taken once, and have no length.
class Generator : public Object {
 public:
  Generator(Budget& budget, Value items) : Object(budget), items_(std::move(items)) {}  // a list
  std::string_view type() const override { return "generator"; }
  bool is_iterator() const override { return true; }
  bool next(Machine&, Value& item) override;
  int depth() const override { return items_.depth(); }

 private:
  Value items_;
  size_t at_ = 0;
};

// What groupby makes: a pair whose parts have names.
class Group : public Object {
 public:
  Group(Budget& budget, Value grouper, Value list)
      : Object(budget), grouper_(std::move(grouper)), list_(std::move(list)) {}
  std::string_view type() const override { return "tuple"; }
  void print(Machine&, Text& out) const override;
  Value attribute(Machine&, std::string_view name) override;
  bool is_collection() const override { return true; }
  bool is_sequence() const override { return true; }
  size_t length() const override { return 2; }
  Value at(Machine&, size_t index) const override { return index == 0 ? grouper_ : list_; }
  int depth() const override { return std::max(grouper_.depth(), list_.depth()); }

 private:
  Value grouper_, list_;
};

class Namespace : public Object {
 public:
  using Object::Object;
  std::string_view type() const override { return "Namespace"; }
  void print(Machine&, Text& out) const override;
  Value attribute(Machine&, std::string_view name) override;
  void set(Machine&, std::string_view name, Value value);
  void clear() override { attributes_.clear(); }

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
};

// Does not hold the scope, in which it lies itself: the Machine does.
class Macro : public Object {
 public:
  Macro(Budget& budget, std::shared_ptr<const MacroSyntax> syntax, std::weak_ptr<Scope> scope)
      : Object(budget), syntax_(std::move(syntax)), scope_(std::move(scope)) {}
  std::string_view type() const override { return "Macro"; }
  void print(Machine&, Text& out) const override;
  bool is_callable() const override { return true; }
  Value call(Machine& machine, Arguments arguments) override;
  Value attribute(Machine&, std::string_view name) override;

 private:
  std::shared_ptr<const MacroSyntax> syntax_;
  std::weak_ptr<Scope> scope_;
};

// A function of Jinja or a method of a value.
class Function : public Object {
 public:
  using Run = std::function<Value(Machine&, Arguments)>;
  Function(Budget& budget, std::string name, Run run, int depth = 0)
      : Object(budget), name_(std::move(name)), run_(std::move(run)), depth_(depth) {}
  std::string_view type() const override { return "function"; }
  void print(Machine&, Text& out) const override;
  bool is_callable() const override { return true; }
  Value call(Machine& machine, Arguments arguments) override { return run_(machine, std::move(arguments)); }
  int depth() const override { return depth_; }

 private:
  std::string name_;
  Run run_;
  int depth_;
};

class Cycler : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  Cycler(Budget& budget, Value items) : Object(budget), items_(std::move(items)) {}
  std::string_view type() const override { return "Cycler"; }
  Value attribute(Machine&, std::string_view name) override;
  int depth() const override { return items_.depth(); }
  Value current() const { return items_.items()->values[at_]; }

 private:
  Value items_;
  size_t at_ = 0;
};

class Joiner : public Object {
 public:
  Joiner(Budget& budget, Value separator) : Object(budget), separator_(std::move(separator)) {}
  std::string_view type() const override { return "Joiner"; }
  bool is_callable() const override { return true; }
  Value call(Machine&, Arguments) override;

 private:
  Value separator_;
  bool used_ = false;
};

// The function or object that templates know by this name without being given it: range, dict, namespace, …
std::optional<Value> global(Machine& machine, std::string_view name);

}  // namespace wick::jinja
