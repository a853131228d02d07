// Metadata of GGUF files, asked for by key and type.
#include <fmt/format.h>

#include <cmath>
#include <type_traits>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/gguf.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

template <class T>
constexpr bool is_integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;
template <class T>
struct ElementOf {
  using type = void;
};
template <class T>
struct ElementOf<std::vector<T>> {
  using type = T;
};
template <class T>
using Element = typename ElementOf<T>::type;

// The integer, if it is one that an int64_t holds and the range allows.
template <class T>
std::optional<int64_t> integer_in(T value, IntegerRange range) {
  if (!std::in_range<int64_t>(value) || int64_t(value) < range.min || int64_t(value) > range.max) return std::nullopt;
  return int64_t(value);
}

std::string described(IntegerRange range, const char* many) {
  constexpr IntegerRange kAny;
  if (range.min == kAny.min && range.max == kAny.max) return many;
  return fmt::format("{} from {} to {}", many, range.min, range.max);
}

}  // namespace

std::string to_string(const GgufValue& value) {
  return std::visit(
      []<class T>(const T& v) -> std::string {
        if constexpr (std::is_same_v<T, std::string>)
          return v;
        else if constexpr (std::is_same_v<T, GgufArray>)
          return std::visit(
              []<class A>(const A& array) -> std::string {
                using E = Element<A>;
                if constexpr (std::is_void_v<E>)
                  return "nothing";
                else
                  return fmt::format("{}", count_of(array.size(), std::is_same_v<E, std::string> ? "string"
                                                                  : std::is_same_v<E, bool>      ? "bool"
                                                                  : is_integer<E>                ? "integer"
                                                                                                 : "number"));
              },
              v);
        else
          return fmt::format("{}", v);
      },
      value);
}

GgufMetadata::GgufMetadata(std::string source, Entries entries)
    : source_(std::move(source)), entries_(std::move(entries)) {
  for (size_t i = 0; i < entries_.size(); ++i)
    check(index_.emplace(entries_[i].first, i).second, "{}: the metadata key {} stands twice", source_,
          quote(entries_[i].first));
}

const GgufValue& GgufMetadata::value(const std::string& key) const {
  const auto found = index_.find(key);
  check(found != index_.end(), "{}: the metadata key {} is missing", source_, quote(key));
  return entries_[found->second].second;
}

void GgufMetadata::fail_value(const std::string& key, std::string_view expected) const {
  const GgufValue& found = value(key);
  const bool is_text = std::holds_alternative<std::string>(found);
  fail("{}: metadata {}: expected {}, found {}", source_, quote(key), expected,
       is_text ? quote(to_string(found)) : to_string(found));
}

int64_t GgufMetadata::integer(const std::string& key, IntegerRange range) const {
  const auto found = std::visit(
      [&]<class T>(const T& v) -> std::optional<int64_t> {
        if constexpr (is_integer<T>)
          return integer_in(v, range);
        else
          return std::nullopt;
      },
      value(key));
  if (!found) fail_value(key, described(range, "an integer"));
  return *found;
}

double GgufMetadata::number(const std::string& key) const {
  const auto found = std::visit(
      []<class T>(const T& v) -> double {
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
          return double(v);
        else
          return std::numeric_limits<double>::quiet_NaN();
      },
      value(key));
  if (!std::isfinite(found)) fail_value(key, "a finite number");
  return found;
}

int64_t GgufMetadata::integer_or(const std::string& key, int64_t fallback, IntegerRange range) const {
  return has(key) ? integer(key, range) : fallback;
}
double GgufMetadata::number_or(const std::string& key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

bool GgufMetadata::boolean_or(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  const auto* found = std::get_if<bool>(&value(key));
  if (!found) fail_value(key, "true or false");
  return *found;
}

const std::string& GgufMetadata::text(const std::string& key) const {
  const auto* found = std::get_if<std::string>(&value(key));
  if (!found) fail_value(key, "a string");
  return *found;
}
std::string GgufMetadata::text_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

const std::vector<std::string>& GgufMetadata::texts(const std::string& key) const {
  const auto* array = std::get_if<GgufArray>(&value(key));
  const auto* found = array ? std::get_if<std::vector<std::string>>(array) : nullptr;
  if (!found) fail_value(key, "an array of strings");
  return *found;
}

std::vector<float> GgufMetadata::numbers(const std::string& key) const {
  const auto* array = std::get_if<GgufArray>(&value(key));
  std::vector<float> numbers;
  const bool fits = array && std::visit(
                                 [&]<class A>(const A& values) {
                                   using E = Element<A>;
                                   if constexpr (std::is_arithmetic_v<E> && !std::is_same_v<E, bool>)
                                     return numbers.assign(values.begin(), values.end()), true;
                                   else
                                     return false;
                                 },
                                 *array);
  if (!fits) fail_value(key, "an array of numbers");
  return numbers;
}

std::vector<int64_t> GgufMetadata::integers(const std::string& key, IntegerRange range) const {
  const auto* array = std::get_if<GgufArray>(&value(key));
  std::vector<int64_t> integers;
  const bool fits = array && std::visit(
                                 [&]<class A>(const A& values) {
                                   if constexpr (is_integer<Element<A>>) {
                                     for (const auto v : values) {
                                       const auto integer = integer_in(v, range);
                                       if (!integer) return false;
                                       integers.push_back(*integer);
                                     }
                                     return true;
                                   } else {
                                     return false;
                                   }
                                 },
                                 *array);
  if (!fits) fail_value(key, described(range, "an array of integers"));
  return integers;
}

}  // namespace wick
