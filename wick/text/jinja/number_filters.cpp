// Filters on numbers, and attr.
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "wick/text/jinja/characters.h"
#include "wick/text/jinja/filter_tables.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"
#include "wick/text/jinja/strings.h"

namespace wick::jinja {
namespace {

Value abs_filter(Machine&, const Value& subject, const Bound&) {
  require_defined(subject);
  require(subject.is_number(), "expected a number for abs, found {}", type_name(subject));
  if (subject.is<double>()) return std::abs(subject.get<double>());
  return subject.integer() < 0 ? negative(subject) : Value(subject.integer());
}

Value attr(Machine& machine, const Value& subject, const Bound& given) {
  require_defined(subject);
  return attribute(machine, subject, given.text(0));
}

// Underscores stand between digits alone. Returns false if there are others.
bool remove_underscores(std::string& digits) {
  for (size_t i = 0; i < digits.size(); ++i)
    if (digits[i] == '_' && (i == 0 || i + 1 == digits.size() || !std::isalnum(uint8_t(digits[i - 1])) ||
                             !std::isalnum(uint8_t(digits[i + 1]))))
      return false;
  std::erase(digits, '_');
  return true;
}

// Python's int(text, base), none where that raises ValueError.
std::optional<int64_t> integer_of(std::string digits, int64_t base) {
  const bool is_negative = digits.starts_with('-');
  if (is_negative || digits.starts_with('+')) digits.erase(0, 1);
  if (digits.size() > 1 && digits[0] == '0') {
    const char prefix = char(digits[1] | 0x20);
    const int64_t of_prefix = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 0;
    if (of_prefix != 0 && (base == of_prefix || base == 0)) {
      base = of_prefix, digits.erase(0, 2);
      if (digits.starts_with('_')) digits.erase(0, 1);
    } else if (base == 0 && digits.find_first_not_of("0_") != digits.npos) {
      return std::nullopt;
    }
  }
  if (base == 0) base = 10;
  if (!remove_underscores(digits) || digits.empty() || digits[0] == '-' || digits[0] == '+') return std::nullopt;
  digits.insert(0, is_negative ? "-" : "");
  int64_t value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value, int(base));
  if (end != digits.data() + digits.size() || code == std::errc::invalid_argument) return std::nullopt;
  require(code == std::errc(), "expected an integer of 64 bits, found a larger one");
  return value;
}

// Python's float(text), none where that raises ValueError.
std::optional<double> real_of(std::string digits) {
  constexpr std::string_view allowed = "0123456789.eE+-_";
  std::string small = python_lower_case(digits);
  const size_t sign = small.starts_with('-') || small.starts_with('+') ? 1 : 0;
  const std::string word = small.substr(sign);
  if (word == "inf" || word == "infinity") return small[0] == '-' ? -HUGE_VAL : HUGE_VAL;
  if (word == "nan") return std::nan("");
  if (digits.find_first_not_of(allowed) != digits.npos || !remove_underscores(digits) || digits.empty())
    return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  return end == digits.c_str() + digits.size() ? std::optional(value) : std::nullopt;
}

std::string stripped(Machine& machine, const Value& subject) {
  return std::string(strip(machine, subject.bytes(), Side::both, std::nullopt));
}

Value truncated(double value) {
  require(!std::isinf(value), "expected a finite number for int, found {}", repr_of_float(value));
  require(std::abs(value) < 0x1p63, "expected an integer of 64 bits, found {}", repr_of_float(value));
  return int64_t(value);
}

Value int_filter(Machine& machine, const Value& subject, const Bound& given) {
  require_defined(subject);
  const Value otherwise = given.get(0, int64_t(0));
  if (subject.is_integer()) return subject.integer();
  if (subject.is<double>()) return std::isnan(subject.get<double>()) ? otherwise : truncated(subject.get<double>());
  if (!subject.is_string()) return otherwise;
  const int64_t base = given.integer(1, 10);
  const std::string text = stripped(machine, subject);
  if (base == 0 || (base >= 2 && base <= 36))
    if (const auto value = integer_of(text, base)) return *value;
  const auto real = real_of(text);
  return !real || std::isnan(*real) || std::isinf(*real) ? otherwise : truncated(*real);
}

Value float_filter(Machine& machine, const Value& subject, const Bound& given) {
  require_defined(subject);
  if (subject.is_number()) return subject.real();
  if (subject.is_string())
    if (const auto value = real_of(stripped(machine, subject))) return *value;
  return given.get(0, 0.0);
}

// Ties go to even, by all the digits that the number has.
double rounded(double value, int64_t precision) {
  if (!std::isfinite(value) || precision > 323) return value;
  if (precision < -308) return std::copysign(0.0, value);
  if (precision < 0) {
    const double unit = std::pow(10.0, double(-precision));
    return std::nearbyint(value / unit) * unit;
  }
  std::array<char, 700> digits;
  std::snprintf(digits.data(), digits.size(), "%.*f", int(precision), value);
  return std::strtod(digits.data(), nullptr);
}

int64_t rounded_integer(int64_t value, int64_t precision) {
  if (precision >= 0) return value;
  if (precision < -18) return 0;
  int64_t unit = 1;
  for (int64_t i = precision; i < 0; ++i) unit *= 10;
  const int64_t rest = ((value % unit) + unit) % unit;
  int64_t low = 0;
  require(!__builtin_sub_overflow(value, rest, &low), "expected an integer of 64 bits, found a larger one");
  const bool rises = rest > unit - rest || (rest == unit - rest && (low / unit) % 2 != 0);
  require(!rises || !__builtin_add_overflow(low, unit, &low), "expected an integer of 64 bits, found a larger one");
  return low;
}

Value round_filter(Machine& machine, const Value& subject, const Bound& given) {
  require_defined(subject);
  machine.budget.step(50);  // it may write and read hundreds of digits
  const int64_t precision = given.integer(0, 0);
  const std::string_view method = given.text(1, "common");
  require(method == "common" || method == "ceil" || method == "floor",
          "expected common, ceil or floor for round, found another method");
  require(subject.is_number(), "expected a number for round, found {}", type_name(subject));
  if (method == "common")
    return subject.is<double>() ? Value(rounded(subject.get<double>(), precision))
                                : Value(rounded_integer(subject.integer(), precision));
  const double unit = std::pow(10.0, double(precision)), scaled = subject.real() * unit;
  require(std::isfinite(scaled) && unit != 0, "expected a finite number for round, found {}",
          repr_of_float(subject.real()));
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit;
}

constexpr std::array<Filter, 5> kNumberFilters{{{"abs", "", abs_filter},
                                                {"attr", "name", attr},
                                                {"float", "default?", float_filter},
                                                {"int", "default? base?", int_filter},
                                                {"round", "precision? method?", round_filter}}};

}  // namespace

std::span<const Filter> number_filters() { return kNumberFilters; }

}  // namespace wick::jinja
