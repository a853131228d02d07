// The arguments of a call, matched to the parameters of a function of ours.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wick/text/jinja/machine.h"
#include "wick/text/jinja/value.h"

namespace wick::jinja {

class Bound {
 public:
  // `parameters`: names with spaces between them, of which those that end in ? may be left out.
  Bound(Arguments arguments, std::string_view function, std::string_view parameters);

  bool has(size_t i) const { return values_[i].has_value(); }
  const Value& operator[](size_t i) const { return *values_[i]; }
  Value get(size_t i, Value otherwise = {}) const { return has(i) ? *values_[i] : otherwise; }
  bool flag(size_t i) const;
  int64_t integer(size_t i, int64_t otherwise = 0) const;
  std::string_view text(size_t i, std::string_view otherwise = {}) const;  // of a string, which must be one
  const Str& string(size_t i) const;                                       // that is there
  const Marked& string(size_t i, const Marked& otherwise) const { return has(i) ? string(i) : otherwise; }
  bool is_given(size_t i) const { return has(i) && !values_[i]->is_none(); }

 private:
  std::string function_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace wick::jinja
