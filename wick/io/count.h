// "1 row", "2 rows": a count with its noun, for messages.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace wick {

inline std::string noun_of(uint64_t count, std::string_view noun) {
  return std::string(noun) + (count == 1 ? "" : "s");
}

struct Count {  // formatted only with its message, so that a check that holds costs nothing
  uint64_t count;
  std::string_view noun;
};

template <class Integer>
Count count_of(Integer count, std::string_view noun) {
  return {uint64_t(count), noun};
}

}  // namespace wick

template <>
struct fmt::formatter<wick::Count> {
  constexpr auto parse(format_parse_context& context) { return context.begin(); }
  template <class Context>
  auto format(const wick::Count& c, Context& context) const {
    return fmt::format_to(context.out(), "{} {}", c.count, wick::noun_of(c.count, c.noun));
  }
};
