// The values of a template: Python's, as far as Jinja's sandbox lets templates see them.
//
// Values do not change once they are made (the immutable sandbox of Jinja): only namespaces and the other kinds of
// Object do. Lists and dicts nest at most kMaxValueDepth deep, so that walks over them may recurse.
// Sources: Jinja 3.1's documentation ("Template Designer Documentation"), Python's ("Built-in Types").
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "wick/text/jinja/limits.h"
#include "wick/text/jinja/marked.h"

namespace wick::jinja {

class Machine;
class Text;
class Value;

// Valid UTF-8 with its number of code points, which Python counts and indexes.
struct Str : Marked {
  Str(Marked text, bool markup, Budget* budget);

  size_t length;
  bool is_markup;  // by the filters `safe` and `escape`: what is added to it becomes escaped
  Charge charge;
  bool is_ascii() const { return length == bytes.size(); }
};

struct Items {
  Items(std::vector<Value> values, Budget* budget);
  ~Items();

  std::vector<Value> values;
  int depth;
  Charge charge;
};

// In order of insertion.
struct Dict {
  using Pairs = std::vector<std::pair<Value, Value>>;
  Dict(Pairs pairs, Budget* budget);
  ~Dict();

  Pairs pairs;
  int depth;
  Charge charge;
};

// What a missing variable, attribute or item is: it prints as nothing, and most other uses of it raise `message`.
struct Missing {
  std::string message;
  Charge charge;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<Marked, Value>> named;
};

// Everything else: namespaces, macros, methods, loops, iterators, ranges. The defaults are those of an object that has
// no attributes and cannot be called or iterated.
class Object {
 public:
  explicit Object(Budget& budget) : charge_(&budget, kBytes) {}
  virtual ~Object() = default;
  virtual std::string_view type() const = 0;
  virtual void print(Machine& machine, Text& out) const;
  virtual bool is_callable() const { return false; }
  virtual Value call(Machine& machine, Arguments arguments);
  virtual Value attribute(Machine& machine, std::string_view name);  // Missing if there is none
  // One more item of an iterator, which is used up by it.
  virtual bool is_iterator() const { return false; }
  virtual bool next(Machine& machine, Value& item);
  // The items of an object that may be iterated again and again, and has a length.
  virtual bool is_collection() const { return false; }
  virtual bool is_sequence() const { return false; }  // that has an item for each index
  virtual size_t length() const { return 0; }
  virtual Value at(Machine& machine, size_t index) const;
  virtual int depth() const { return 0; }
  virtual void clear() {}  // lets go of all values, which may lead back here

 private:
  static constexpr size_t kBytes = 256;
  Charge charge_;
};

using Undefined = std::shared_ptr<const Missing>;
using String = std::shared_ptr<const Str>;
struct List : std::shared_ptr<const Items> {
  explicit List(std::shared_ptr<const Items> items) : shared_ptr(std::move(items)) {}
};
struct Tuple : std::shared_ptr<const Items> {
  explicit Tuple(std::shared_ptr<const Items> items) : shared_ptr(std::move(items)) {}
};
using Mapping = std::shared_ptr<const Dict>;
using ObjectRef = std::shared_ptr<Object>;

class Value {
 public:
  Value() : held_(std::monostate{}) {}  // None
  template <class T>
  requires(!std::is_same_v<std::remove_cvref_t<T>, Value> && !std::is_pointer_v<std::remove_cvref_t<T>>) Value(T&& held)
      : held_(std::forward<T>(held)) {}

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(held_);
  }
  template <class T>
  const T& get() const {
    return std::get<T>(held_);
  }
  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&held_);
  }

  bool is_none() const { return is<std::monostate>(); }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_string() const { return is<String>(); }
  bool is_integer() const { return is<int64_t>() || is<bool>(); }  // Python's bool is an int
  bool is_number() const { return is_integer() || is<double>(); }
  const std::string& bytes() const { return get<String>()->bytes; }
  int64_t integer() const { return is<bool>() ? int64_t(get<bool>()) : get<int64_t>(); }
  double real() const { return is<double>() ? get<double>() : double(integer()); }
  const Items* items() const;  // of a list or tuple; else null
  template <class T>
  std::shared_ptr<T> object() const {
    return is<ObjectRef>() ? std::dynamic_pointer_cast<T>(get<ObjectRef>()) : nullptr;
  }
  int depth() const;
  bool same_as(const Value& other) const;  // Python's `is`

 private:
  std::variant<std::monostate, bool, int64_t, double, String, List, Tuple, Mapping, Undefined, ObjectRef> held_;
};

std::string_view type_name(const Value& value);  // Python's
Value undefined(Budget& budget, std::string message);
// Throws Problem with the message of an undefined value; returns for all others.
void require_defined(const Value& value);

}  // namespace wick::jinja
