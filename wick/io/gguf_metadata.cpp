// Metadata of GGUF files, asked for by key and type.
#include <fmt/format.h>

#include <cmath>
#include <type_traits>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/gguf.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

template <class T>
constexpr bool is_integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;
template <class T>
constexpr bool is_number = is_integer<T> || std::is_floating_point_v<T>;

// The integer, if it is one that an int64_t holds and the range allows.
template <class T>
std::optional<int64_t> integer_in(const T& value, IntegerRange range) {
  if constexpr (is_integer<T>)
    if (std::in_range<int64_t>(value) && int64_t(value) >= range.min && int64_t(value) <= range.max)
      return int64_t(value);
  return std::nullopt;
}

// The elements of an array of numbers as `convert` makes them; none if it is something else, or `convert` gives none.
template <class To, class Convert>
std::optional<std::vector<To>> converted(const GgufValue& value, const Convert& convert) {
  const auto* array = std::get_if<GgufArray>(&value);
  if (!array) return std::nullopt;
  return std::visit(
      [&]<class A>(const A& values) -> std::optional<std::vector<To>> {
        if constexpr (!std::is_same_v<A, std::monostate>)
          if constexpr (std::is_invocable_v<Convert, typename A::value_type>) {
            std::vector<To> all;
            for (const auto& each : values) {
              const std::optional<To> one = convert(each);
              if (!one) return std::nullopt;
              all.push_back(*one);
            }
            return all;
          }
        return std::nullopt;
      },
      *array);
}

// Without a range for what is no integer at all, where any would do.
std::string described(IntegerRange range, const char* many, bool is_integer) {
  constexpr IntegerRange kAny;
  if (range.min == kAny.min && range.max == kAny.max && !is_integer) return many;
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
                if constexpr (std::is_same_v<A, std::monostate>) {
                  return "nothing";
                } else {
                  using E = typename A::value_type;
                  return fmt::format("{}", count_of(array.size(), std::is_same_v<E, std::string> ? "string"
                                                                  : std::is_same_v<E, bool>      ? "bool"
                                                                  : is_integer<E>                ? "integer"
                                                                                                 : "number"));
                }
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
  const auto found = std::visit([&](const auto& v) { return integer_in(v, range); }, value(key));
  const auto whole = []<class T>(const T&) { return is_integer<T>; };
  if (!found) fail_value(key, described(range, "an integer", std::visit(whole, value(key))));
  return *std::move(found);
}

double GgufMetadata::number(const std::string& key) const {
  const auto found = std::visit(
      []<class T>(const T& v) -> double {
        if constexpr (is_number<T>)
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
  return *std::move(found);
}

const std::string& GgufMetadata::text(const std::string& key) const {
  const auto* found = std::get_if<std::string>(&value(key));
  if (!found) fail_value(key, "a string");
  return *std::move(found);
}
std::string GgufMetadata::text_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

const std::vector<std::string>& GgufMetadata::texts(const std::string& key) const {
  const auto* array = std::get_if<GgufArray>(&value(key));
  const auto* found = array ? std::get_if<std::vector<std::string>>(array) : nullptr;
  if (!found) fail_value(key, "an array of strings");
  return *std::move(found);
}

std::vector<float> GgufMetadata::numbers(const std::string& key) const {
  auto found = converted<float>(
      value(key), []<class T>(T v) requires is_number<T> { return std::optional(float(v)); });
  if (!found) fail_value(key, "an array of numbers");
  return *std::move(found);
}

std::vector<int64_t> GgufMetadata::integers(const std::string& key, IntegerRange range) const {
  auto found = converted<int64_t>(
      value(key), [&]<class T>(T v) requires is_integer<T> { return integer_in(v, range); });
  if (!found) fail_value(key, described(range, "an array of integers", /*is_integer=*/false));
  return *std::move(found);
}

}  // namespace wick
