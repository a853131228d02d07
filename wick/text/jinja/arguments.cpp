#include "wick/text/jinja/arguments.h"

#include <algorithm>

#include "wick/io/quote.h"
#include "wick/text/jinja/operations.h"

namespace wick::jinja {

Bound::Bound(Arguments arguments, std::string_view function, std::string_view parameters) : function_(function) {
  std::vector<std::string_view> names;
  std::vector<bool> optional;
  while (!parameters.empty()) {
    const std::string_view word = parameters.substr(0, parameters.find(' '));
    parameters.remove_prefix(std::min(word.size() + 1, parameters.size()));
    optional.push_back(word.ends_with('?'));
    names.push_back(word.substr(0, word.size() - (optional.back() ? 1 : 0)));
  }
  require(arguments.positional.size() <= names.size(), "expected at most {} arguments of {}, found {}", names.size(),
          function, arguments.positional.size());
  values_.resize(names.size());
  std::move(arguments.positional.begin(), arguments.positional.end(), values_.begin());
  for (auto& [name, value] : arguments.named) {
    const auto at = size_t(std::find(names.begin(), names.end(), name.bytes) - names.begin());
    require(at < names.size() && !values_[at], "expected no argument {} of {}, found one", quote(name.bytes), function);
    values_[at] = std::move(value);
  }
  for (size_t i = 0; i < names.size(); ++i)
    require(optional[i] || values_[i], "expected an argument {} of {}, found none", quote(names[i]), function);
}

bool Bound::flag(size_t i) const { return has(i) && truth(*values_[i]); }

int64_t Bound::integer(size_t i, int64_t otherwise) const {
  if (!has(i)) return otherwise;
  require_defined(*values_[i]);
  require(values_[i]->is_integer(), "expected an integer for {}, found {}", function_, type_name(*values_[i]));
  return values_[i]->integer();
}

std::string_view Bound::text(size_t i, std::string_view otherwise) const {
  return has(i) ? std::string_view(string(i).bytes) : otherwise;
}

const Str& Bound::string(size_t i) const {
  require_defined(*values_[i]);
  require(values_[i]->is_string(), "expected a string for {}, found {}", function_, type_name(*values_[i]));
  return *values_[i]->get<String>();
}

}  // namespace wick::jinja
